"""Why a device was idle: CUDA calls, launches, synchronisation and host activity in each gap."""
