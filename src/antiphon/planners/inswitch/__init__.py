"""Plans with multicast and reduction in switches (NVLS, SHARP) (docs/schedule.md)."""
