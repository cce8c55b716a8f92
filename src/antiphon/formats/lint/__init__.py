"""Whether a runtime will really run what is written for it: or refuse or ignore it, hang, or compute wrongly."""
