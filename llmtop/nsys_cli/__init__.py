"""The nsys program: where it is, what it can do, its sessions and exports."""
