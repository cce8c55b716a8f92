"""What stock libraries are told to choose: tables, rules and graphs that they read by themselves (docs/stock.md)."""
