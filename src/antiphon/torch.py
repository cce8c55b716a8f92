"""`import antiphon.torch` registers the PyTorch backend: dist.init_process_group("antiphon"). See docs/torch.md."""

from antiphon.runtimes.serve.torch_backend import AntiphonGroup, register, report
from antiphon.runtimes.serve.torch_group import use
from antiphon.runtimes.serve.torch_work import CollectiveFailed

__all__ = ["AntiphonGroup", "CollectiveFailed", "report", "use"]

register()
