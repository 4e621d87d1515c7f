"""All counters of a node: a made-up sysfs and driver, this machine's, and a real veth pair."""

import os
import subprocess
import sys as python
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import PATIENCE_S

from repro.observe.adapters import read_interfaces
from repro.observe.counters import open_counters
from repro.observe.nic import interface_bytes, sample_counters
from repro.testbed.ability import ENTER

_STATISTICS = "class/net/{}/statistics/{}_bytes"
_PORT = "class/infiniband/{}/ports/1/"
_TELEMETRY = "class/cxi/cxi0/device/telemetry/hni_sts_{}_ok_octets"


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even on a machine that has one."""
    monkeypatch.setitem(python.modules, "pynvml", None)


def _write(sys: Path, files: dict[str, object]) -> None:
    for name, text in files.items():
        path = sys / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")


def _interface(name: str, operstate: str, received: int, sent: int) -> dict[str, object]:
    return {
        f"class/net/{name}/type": 1,
        f"class/net/{name}/operstate": operstate,
        _STATISTICS.format(name, "rx"): received,
        _STATISTICS.format(name, "tx"): sent,
    }


def _port(hca: str, state: str, **counters: object) -> dict[str, object]:
    folder = _PORT.format(hca)
    return {
        f"{folder}link_layer": "InfiniBand",
        f"{folder}state": state,
        f"{folder}rate": "100 Gb/sec (4X EDR)",
        **{f"{folder}counters/{name}": value for name, value in counters.items()},
    }


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    _write(
        tmp_path,
        {
            **_port("mlx5_0", "4: ACTIVE", port_rcv_data=250, port_xmit_data=10**12),
            **_port("mlx5_1", "1: DOWN", port_rcv_data=1, port_xmit_data=2),
            **_port("mlx5_2", "4: ACTIVE"),
            **_port("mlx5_3", "4: ACTIVE", port_rcv_data="N/A (no PMA)", port_xmit_data=2),
            **_interface("eth0", "up", 11, 12),
            **_interface("docker0", "down", 13, 14),
            **_interface("hsn0", "up", 15, 16),
            **_interface("veth1", "up", 17, 18),
            **_interface("lo", "unknown", 19, 20),
            _TELEMETRY.format("rx"): "21@1700000000.000000001",
            _TELEMETRY.format("tx"): "22@1700000000.000000002",
        },
    )
    return tmp_path


def test_every_adapter_that_can_be_read_has_a_column_in_bytes(sys: Path) -> None:
    with open_counters(sys) as counters:
        assert dict(zip(counters.names, counters.read(), strict=True)) == {
            "mlx5_0:1": (1000, 4 * 10**12),
            "eth0": (11, 12),
            "hsn0": (15, 16),
            "veth1": (17, 18),
            "cxi0": (21, 22),
        }
        _write(sys, {_PORT.format("mlx5_0") + "counters/port_rcv_data": 260})
        _write(sys, {_TELEMETRY.format("tx"): "1022@1700000001.000000002"})
        _write(sys, {_STATISTICS.format("veth1", "rx"): 7})
        after = dict(zip(counters.names, counters.read(), strict=True))
        assert after["mlx5_0:1"] == (1040, 4 * 10**12)
        assert after["cxi0"] == (21, 1022)
        assert after["veth1"] == (7, 18)
        assert not counters.failures


def test_files_are_closed_in_the_end(sys: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with open_counters(sys) as counters:
        counters.read()
        assert len(os.listdir("/proc/self/fd")) > len(before)
    assert os.listdir("/proc/self/fd") == before


def test_a_node_without_adapters_has_no_columns(tmp_path: Path) -> None:
    (tmp_path / "class/net").mkdir(parents=True)
    with open_counters(tmp_path) as counters:
        assert counters.names == ()
        assert counters.read() == []


def test_a_counter_that_fails_stays_and_says_why(sys: Path) -> None:
    received = sys / _STATISTICS.format("eth0", "rx")
    with open_counters(sys) as counters:
        received.write_text("", encoding="utf-8")
        _write(sys, {_STATISTICS.format("hsn0", "rx"): 1015})
        after = dict(zip(counters.names, counters.read(), strict=True))
        assert after["eth0"] == (11, 12)
        assert after["hsn0"] == (1015, 16)
        assert list(counters.failures) == ["eth0"]
        received.write_text("111\n", encoding="utf-8")
        assert dict(zip(counters.names, counters.read(), strict=True))["eth0"] == (111, 12)
        assert list(counters.failures) == ["eth0"]


def test_old_kernels_counters_of_64_bits_are_preferred(sys: Path) -> None:
    folder = _PORT.format("mlx5_0") + "counters_ext/"
    _write(sys, {f"{folder}port_rcv_data_64": 5_000_000_000})
    _write(sys, {f"{folder}port_xmit_data_64": 6_000_000_000})
    with open_counters(sys) as counters:
        assert counters.read()[0] == (20_000_000_000, 24_000_000_000)


def test_a_full_counter_of_32_bits_is_a_failure(sys: Path) -> None:
    name = _PORT.format("mlx5_0") + "counters/port_xmit_data"
    _write(sys, {name: 2**32 - 2})
    with open_counters(sys) as counters:
        _write(sys, {name: 2**32 - 1})
        assert counters.read()[0] == (1000, 4 * (2**32 - 2))
        assert counters.failures == {"mlx5_0:1": "its 32-bit counter is saturated"}
    with open_counters(sys) as counters:
        assert "mlx5_0:1" not in counters.names


class _Driver:
    """What NVML answers for GPUs that count these fields: (GPU, field, scope) to number."""

    NVML_SUCCESS = 0
    NVML_VALUE_TYPE_UNSIGNED_INT = 1
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES = 197
    NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 198

    class NVMLError(Exception):
        pass

    def __init__(self, numbers: dict[tuple[int, int, int], int], loaded: bool = True) -> None:
        self.numbers = numbers
        self.loaded = loaded
        self.calls: list[str] = []

    def nvmlInit(self) -> None:
        if not self.loaded:
            raise self.NVMLError("Driver Not Loaded")
        self.calls.append("init")

    def nvmlShutdown(self) -> None:
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 1:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetFieldValues(self, device: int, fields: list[tuple[int, int]]) -> list[Any]:
        if not self.loaded:
            raise self.NVMLError("GPU is lost")
        return [self._value(device, field, scope) for field, scope in fields]

    def _value(self, device: int, field: int, scope: int) -> Any:
        number = self.numbers.get((device, field, scope))
        counts_32 = field in (197, 198)
        return SimpleNamespace(
            fieldId=field,
            nvmlReturn=3 if number is None else 0,
            valueType=1 if counts_32 else 3,
            # Of a union, only the member of the value's type means something.
            value=SimpleNamespace(uiVal=number if counts_32 else -1, ullVal=number),
        )


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    fake = _Driver(
        {
            (0, 139, 2**32 - 1): 5_000_000_000,
            (0, 138, 2**32 - 1): 3,
            (0, 198, 0): 100,
            (0, 197, 0): 2**32 - 50,
            (2, 198, 0): 7,
            (2, 197, 0): 8,
        }
    )
    monkeypatch.setitem(python.modules, "pynvml", fake)
    return fake


def test_gpus_links_are_counted_where_the_driver_does(tmp_path: Path, driver: _Driver) -> None:
    (tmp_path / "class/net").mkdir(parents=True)
    with open_counters(tmp_path) as counters:
        assert dict(zip(counters.names, counters.read(), strict=True)) == {
            "gpu0 NVLink": (5_000_000_000 * 1024, 3 * 1024),
            "gpu0 PCIe": (100, 2**32 - 50),
            "gpu2 PCIe": (7, 8),
        }
        assert driver.calls == ["init"]
    assert driver.calls == ["init", "shutdown"]


def test_a_pcie_counter_that_wraps_goes_on(tmp_path: Path, driver: _Driver) -> None:
    (tmp_path / "class/net").mkdir(parents=True)
    with open_counters(tmp_path) as counters:
        for number, total in ((10, 2**32 + 10), (2**32 - 1, 2**33 - 1), (0, 2**33), (5, 2**33 + 5)):
            driver.numbers[0, 197, 0] = number
            assert counters.read()[1] == (100, total)
        assert not counters.failures


def test_a_gpu_that_no_longer_answers_is_a_failure(tmp_path: Path, driver: _Driver) -> None:
    (tmp_path / "class/net").mkdir(parents=True)
    with open_counters(tmp_path) as counters:
        driver.loaded = False
        assert counters.read()[2] == (7, 8)
        assert "GPU is lost" in counters.failures["gpu2 PCIe"]


@pytest.mark.parametrize("change", ["no driver", "old driver", "old pynvml"])
def test_no_column_and_no_error_where_nothing_is_counted(
    tmp_path: Path, driver: _Driver, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    (tmp_path / "class/net").mkdir(parents=True)
    changes: dict[str, Callable[[], None]] = {
        "no driver": lambda: setattr(driver, "loaded", False),
        "old driver": driver.numbers.clear,
        "old pynvml": lambda: monkeypatch.delattr(_Driver, "NVML_FI_DEV_PCIE_COUNT_RX_BYTES"),
    }
    changes[change]()
    with open_counters(tmp_path) as counters:
        names = counters.names
    assert names == (("gpu0 NVLink",) if change == "old pynvml" else ())


def test_this_machines_interfaces_agree_with_its_table() -> None:
    names = [one.name for one in read_interfaces() if one.up]
    before = Path("/proc/net/dev").read_text()
    with open_counters() as counters:
        middle = dict(zip(counters.names, counters.read(), strict=True))
    after = Path("/proc/net/dev").read_text()
    assert set(names) <= set(middle)
    for name in names:
        low, high = interface_bytes(before, name), interface_bytes(after, name)
        for way in range(2):
            assert low[way] <= middle[name][way] <= high[way]


@pytest.mark.testbed
def test_a_veth_pairs_bytes_are_counted_and_its_end_is_noticed(tmp_path: Path) -> None:
    result = subprocess.run(
        [*ENTER, "-c", _IN_A_NAMESPACE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    if "cannot mount sysfs" in result.stderr:
        pytest.skip(result.stderr.strip().splitlines()[-1])
    assert result.returncode == 0, result.stderr
    names, sent, received, failures = result.stdout.splitlines()
    # A GPU of this machine is in every namespace.
    assert names.split(" gpu")[0] == "left right"
    # Beside the frames only the kernel's own multicast is on the pair.
    assert 1_000_000 <= int(sent) <= 1_010_000
    assert 1_000_000 <= int(received) <= 1_010_000
    assert failures == "left right"


# sysfs shows the network namespace of whoever mounts it, so it is mounted anew in there.
_IN_A_NAMESPACE = """
import ctypes, os, socket, sys, time
from pathlib import Path
from pyroute2 import IPRoute
from repro.observe.counters import open_counters
from repro.observe.nic import sample_counters
from repro.testbed.kernel import CLONE_NEWNET, CLONE_NEWNS, unshare

unshare(CLONE_NEWNET | CLONE_NEWNS)
libc = ctypes.CDLL(None, use_errno=True)
MS_REC, MS_PRIVATE = 0x4000, 0x40000
libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
if libc.mount(b"sysfs", sys.argv[1].encode(), b"sysfs", 0, None):
    sys.exit("cannot mount sysfs here: " + os.strerror(ctypes.get_errno()))
netlink = IPRoute()
netlink.link("add", ifname="left", kind="veth", peer="right")
for name in ("left", "right"):
    netlink.link("set", index=netlink.link_lookup(ifname=name)[0], state="up")
while Path(sys.argv[1], "class/net/left/operstate").read_text() != "up\\n":
    time.sleep(0.01)
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("left", 0))
with open_counters(Path(sys.argv[1])) as counters:
    before = counters.read()
    for _ in range(1000):
        wire.send(bytes(1000))
    after = counters.read()
    left, right = (counters.names.index(name) for name in ("left", "right"))
    print(*counters.names)
    print(after[left][1] - before[left][1])
    print(after[right][0] - before[right][0])
    with sample_counters(counters.read) as series:
        netlink.link("del", index=netlink.link_lookup(ifname="left")[0])
        time.sleep(0.1)
    print(*counters.failures)
    assert series.tx_bytes[-1][left] >= 1_000_000
"""


def test_what_is_read_is_sampled(sys: Path) -> None:
    with open_counters(sys) as counters, sample_counters(counters.read) as series:
        pass
    assert series.rx_bytes[0] == (1000, 11, 15, 17, 21)
