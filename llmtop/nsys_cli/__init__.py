"""The nsys program of this machine: where it is and what it can, its sessions, and its reports as SQLite."""
