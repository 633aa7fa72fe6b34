"""What runners of GPUs may do beyond those of processors: what NVIDIA's driver does for them.

Code on a GPU makes no system call and reads no memory of the host that it was not given; what is
confined here is the process that loads it, and the driver's compiler in it.
"""

from __future__ import annotations

from tunefarm.worker.sandbox import Policy
from tunefarm.worker.seccomp import Calls
from tunefarm.worker.syscalls import GPU_CONDITIONS, GPU_NUMBERS

GPU = Policy(
    readable=(
        "/proc/driver/nvidia*",
        "/proc/devices",
        "/proc/meminfo",
        "/proc/modules",
        "/proc/self",
        "/proc/sys/vm",
        "/sys/bus/pci",
        "/sys/devices",
        "/sys/module/nvidia*",
        "/sys/fs/cgroup",
        "/usr/local/nvidia",  # where hosts of containers put the driver's libraries
    ),
    devices=("/dev/nvidia*", "/dev/dxg"),
    calls=Calls(GPU_NUMBERS, GPU_CONDITIONS),
    any_address=True,
    open_files=4096,
    starts_first=True,
    opens=True,
    threads=True,
    optional=True,
)
