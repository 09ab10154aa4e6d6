"""A cluster as a Prometheus tells it: everything here is PromQL, asked of a server that the site runs."""
