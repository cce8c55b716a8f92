"""What switches do that multicast and reduce: planners whose rows are bound together (docs/schedule.md, Joints)."""
