"""The MIG instances of a GPU, and the identity in their rows."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from collectors.gpu.bounds import Values
    from collectors.nvml.calls import Caller


class Instance:
    """A MIG instance; `place` is its index on the GPU, `number` that of the GPU instance that it is in."""

    def __init__(
        self, handle: Any, uuid: str, name: str, place: int, numbers: tuple[int | None, int | None]
    ) -> None:
        """Keep what identifies the instance; makes no call.

        Args:
            handle: NVML's handle of the MIG device.
            uuid: "MIG-…", as CUDA_VISIBLE_DEVICES takes it.
            name: product and profile, "NVIDIA H200 MIG 1g.18gb".
            place: index on the parent GPU, `mig_index` of snapshots.
            numbers: ids of the GPU instance and the compute instance; None where the driver does not report them.
        """
        self.handle, self.uuid, self.name, self.place = handle, uuid, name, place
        self.number, self.compute = numbers

    def identity(self, gpu_uuid: str) -> Values:
        """Return the identity of the instance, on the GPU with that UUID: fields of
        `llmtop.model.snapshot.Gpu`."""
        return {
            "uuid": self.uuid,
            "name": self.name,
            "mig_parent_uuid": gpu_uuid,
            "mig_index": self.place,
            "mig_gpu_instance": self.number,
            "mig_compute_instance": self.compute,
        }


def find_instances(call: Caller, handle: Any) -> tuple[Instance, ...]:
    """Return the MIG instances of the GPU with that handle; none where MIG is off or the driver does not say."""
    mode = call("nvmlDeviceGetMigMode", handle)
    count = call("nvmlDeviceGetMaxMigDeviceCount", handle) if mode and mode[0] else 0
    handles = ((i, call("nvmlDeviceGetMigDeviceHandleByIndex", handle, i)) for i in range(count or 0))
    found = (_instance(call, one, i) for i, one in handles if one is not None)
    return tuple(instance for instance in found if instance is not None)


def _instance(call: Caller, handle: Any, place: int) -> Instance | None:
    uuid = call("nvmlDeviceGetUUID", handle)
    if uuid is None:
        return None
    name = call("nvmlDeviceGetName", handle) or "MIG instance"
    numbers = call("nvmlDeviceGetGpuInstanceId", handle), call("nvmlDeviceGetComputeInstanceId", handle)
    return Instance(handle, uuid, name, place, numbers)
