"""The planner `dispatch`: trees by time of arrival, and sends in an order on every link, without steps."""
