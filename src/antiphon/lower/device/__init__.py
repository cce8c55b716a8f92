"""Programs for GPUs: tables of one-sided steps that hold at every size."""
