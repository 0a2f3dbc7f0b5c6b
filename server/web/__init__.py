"""What the service fetches from the web: a guard for every outgoing request, and the search engines behind it."""
