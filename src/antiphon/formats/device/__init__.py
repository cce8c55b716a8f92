"""Programs for Antiphon's GPU engine as CUDA and HIP source."""
