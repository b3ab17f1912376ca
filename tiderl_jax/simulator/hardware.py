"""Devices as the cost model sees them.

Peaks are from the vendors' data sheets, per device and per direction. What a program reaches of
them is `assumed`, with the range that a sensitivity sweep should cover in brackets.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device and what joins it to the others."""

    name: str
    dtype: str  # that `flops_per_s` is rated for
    memory_bytes: float
    memory_bytes_per_s: float
    flops_per_s: float  # dense peak
    interconnect_bytes_per_s: float  # NVLink or ICI
    devices_per_domain: int  # that the interconnect joins
    network_bytes_per_s: float  # beyond that domain, per device
    host_bytes_per_s: float  # PCIe
    # Shares of these peaks that programs reach.
    train_mfu: float  # forward and backward of the actor; recomputed activations are a loss
    prefill_mfu: float  # prefill, and the scorer's forward
    decode_mfu: float  # of a batch so large that decoding is bound by compute
    bandwidth_share: float  # of the memory
    link_share: float  # of interconnect, network and host link
    # Fixed parts of operations, in seconds.
    launch_s: float  # of a decode step
    microbatch_s: float  # of one pass over a micro-batch
    update_s: float  # of an optimizer update
    publish_s: float  # of bringing a version to a rank
    repartition_s: float  # of a rank that takes another role


def _gpu(name: str, memory_bytes: float, memory_bytes_per_s: float) -> Hardware:
    """A Hopper device in SXM form, eight to a node; the two differ in their memory only."""
    return Hardware(
        name=name,
        dtype="bfloat16",
        memory_bytes=memory_bytes,
        memory_bytes_per_s=memory_bytes_per_s,
        flops_per_s=989e12,  # NVIDIA H100 and H200 data sheets: 1,979 TFLOPS with sparsity
        interconnect_bytes_per_s=450e9,  # the same: NVLink, 900 GB/s of both directions
        devices_per_domain=8,  # the paper's nodes
        network_bytes_per_s=50e9,  # NVIDIA DGX H100 data sheet: a 400 Gb/s port for each device
        host_bytes_per_s=64e9,  # data sheets: PCIe Gen5, 128 GB/s of both directions
        train_mfu=0.4,  # assumed [0.25, 0.55]
        prefill_mfu=0.5,  # assumed [0.3, 0.7]
        decode_mfu=0.5,  # assumed [0.3, 0.7]
        bandwidth_share=0.7,  # assumed [0.5, 0.9]
        link_share=0.7,  # assumed [0.5, 0.9]
        launch_s=3e-3,  # assumed [1e-3, 1e-2]
        microbatch_s=0.02,  # assumed [0.005, 0.1]
        update_s=0.1,  # assumed [0.02, 1]
        publish_s=0.1,  # assumed [0.02, 1]
        repartition_s=2.0,  # assumed [0.5, 20]
    )


def _tpu(
    name: str,
    *,
    memory_bytes: float,
    memory_bytes_per_s: float,
    flops_per_s: float,
    interconnect_bytes_per_s: float,
    devices_per_domain: int,
    network_bytes_per_s: float,
    host_bytes_per_s: float,
) -> Hardware:
    """A TPU chip; a slice is joined by its interconnect as a whole."""
    return Hardware(
        name=name,
        dtype="bfloat16",
        memory_bytes=memory_bytes,
        memory_bytes_per_s=memory_bytes_per_s,
        flops_per_s=flops_per_s,
        interconnect_bytes_per_s=interconnect_bytes_per_s,
        devices_per_domain=devices_per_domain,
        network_bytes_per_s=network_bytes_per_s,
        host_bytes_per_s=host_bytes_per_s,
        train_mfu=0.5,  # assumed [0.3, 0.65]
        prefill_mfu=0.5,  # assumed [0.3, 0.7]
        decode_mfu=0.4,  # assumed [0.2, 0.6]
        bandwidth_share=0.7,  # assumed [0.5, 0.9]
        link_share=0.7,  # assumed [0.5, 0.9]
        launch_s=2e-3,  # assumed [1e-3, 1e-2]
        microbatch_s=0.02,  # assumed [0.005, 0.1]
        update_s=0.1,  # assumed [0.02, 1]
        publish_s=0.1,  # assumed [0.02, 1]
        repartition_s=2.0,  # assumed [0.5, 20]
    )


_H100 = _gpu("h100", 80e9, 3.35e12)  # NVIDIA H100 SXM data sheet
_H200 = _gpu("h200", 141e9, 4.8e12)  # NVIDIA H200 SXM data sheet
_V5P = _tpu(
    "v5p",  # Google Cloud, "TPU v5p": peaks, both directions of ICI, pod, data center network
    memory_bytes=95e9,
    memory_bytes_per_s=2.765e12,
    flops_per_s=459e12,
    interconnect_bytes_per_s=600e9,
    devices_per_domain=8960,
    network_bytes_per_s=6.25e9,
    host_bytes_per_s=32e9,  # assumed [16e9, 64e9]
)
_V6E = _tpu(
    "v6e",  # Google Cloud, "TPU v6e": peaks, both directions of ICI, pod, PCIe Gen5
    memory_bytes=32e9,
    memory_bytes_per_s=1.638e12,
    flops_per_s=918e12,
    interconnect_bytes_per_s=400e9,
    devices_per_domain=256,
    network_bytes_per_s=12.5e9,  # assumed [6e9, 25e9]
    host_bytes_per_s=64e9,
)
# Two virtual cores with AVX2. Measured by `python -m experiments.suites.calibrate_cpu` on the model
# of configs/quickstart.py, except where it says assumed: the quietest of six runs on a machine that
# others used too. Of the other five, most figures were up to twice as slow.
_CPU = Hardware(
    name="cpu",
    dtype="float32",
    memory_bytes=24e9,
    memory_bytes_per_s=5.5e9,
    flops_per_s=178e9,
    interconnect_bytes_per_s=5.5e9,  # its memory
    devices_per_domain=1,
    network_bytes_per_s=1e9,  # assumed [1e8, 1e10]
    host_bytes_per_s=5.5e9,  # its memory
    train_mfu=0.28,
    prefill_mfu=0.62,
    decode_mfu=0.25,
    bandwidth_share=1.0,  # measured as what is reached
    link_share=1.0,  # the same
    launch_s=8.7e-4,
    microbatch_s=0.0,  # measured as a part of train_mfu
    update_s=0.056,  # an intercept, and so the least certain: 0.03 to 0.4 in five runs of six
    publish_s=9e-4,
    repartition_s=0.1,  # assumed [0.01, 1]
)

HARDWARE = {hardware.name: hardware for hardware in (_H100, _H200, _V5P, _V6E, _CPU)}
"""By the name that `simulation.hardware` gives."""
