"""Result of an analysis as data; its renderings, comparison and advice."""
