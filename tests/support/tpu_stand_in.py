"""A stand-in for libtpu: a real gRPC server of its RuntimeMetricService, by tpu-info's own messages.

python -m tests.support.tpu_stand_in SCENARIO prints its port and serves until its input ends. SCENARIO is JSON,
read anew for each question: by a metric's name either values by the device's id, or a fault: "hang", "garbage", or
the name of a status of gRPC.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent import futures
from pathlib import Path
from typing import Any

TOTAL, USED, DUTY, HBM = (
    "tpu.runtime.hbm.memory.total.bytes",
    "tpu.runtime.hbm.memory.usage.bytes",
    "tpu.runtime.tensorcore.dutycycle.percent",
    "tpu.runtime.hbm.utilization.percent",
)
GIB = 1 << 30


def healthy(devices: int = 4, chips: int | None = None) -> dict[str, Any]:
    """What a working libtpu says, of so many devices on so many chips."""
    return {
        TOTAL: {str(number): 32 * GIB for number in range(devices)},
        USED: {str(number): (10 + number) * GIB for number in range(devices)},
        DUTY: {str(number): 50.5 + number for number in range(chips or devices)},
        HBM: {str(number): 20.25 + number for number in range(devices)},
    }


def pci(folder: Path, count: int = 4, device: str = "0x006f") -> Path:
    """The kernel's files of so many TPUs (v6e), with a network card of Google's and a disk beside them."""
    folder.mkdir()
    chips = [(f"0000:0{number}:00.0", "0x1ae0", device, "0x0000") for number in range(count)]
    for address, vendor, kind, subsystem in [
        *chips,
        ("0000:0a:00.0", "0x1ae0", "0x0042", "0x0058"),
        ("0000:0b:00.0", "0x8086", "0x1237", "0x1100"),
    ]:
        (folder / address).mkdir()
        for name, text in (("vendor", vendor), ("device", kind), ("subsystem_device", subsystem)):
            (folder / address / name).write_text(f"{text}\n")
    return folder


def main() -> None:
    """Serve."""
    import grpc
    from tpu_info.proto import tpu_metric_service_pb2 as messages

    def answer(data: bytes, context: Any) -> bytes:
        name = messages.MetricRequest.FromString(data).metric_name
        told = json.loads(Path(sys.argv[1]).read_text()).get(name, "NOT_FOUND")
        if told == "hang":
            time.sleep(600)
        if told == "garbage":
            return b"\xff\xff\xff\xffnothing that could be read"
        if isinstance(told, str):
            context.abort(grpc.StatusCode[told], "as the scenario says")
        answered = messages.MetricResponse()
        for device, value in told.items():
            one = answered.metric.metrics.add()
            one.attribute.key = "device-id"
            one.attribute.value.int_attr = int(device)
            setattr(one.gauge, "as_int" if isinstance(value, int) else "as_double", value)
        return answered.SerializeToString()

    handler = grpc.method_handlers_generic_handler(
        "tpu.monitoring.runtime.RuntimeMetricService",
        {"GetRuntimeMetric": grpc.unary_unary_rpc_method_handler(answer)},
    )
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=64))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_secure_port("localhost:0", grpc.local_server_credentials())
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    import os

    os._exit(0)  # threads may hang, as they were told to


if __name__ == "__main__":
    main()
