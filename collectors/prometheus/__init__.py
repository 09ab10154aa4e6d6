"""A cluster as seen by Prometheus: everything here is PromQL, sent to the site's own server."""
