"""What an analysis found, as data; its renderings, comparison and advice."""
