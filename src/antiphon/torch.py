"""`import antiphon.torch` registers the PyTorch backend: dist.init_process_group("antiphon"). See docs/torch.md."""

from antiphon.run._torch_work import CollectiveFailed
from antiphon.run.torch_backend import AntiphonGroup, register, report, use

__all__ = ["AntiphonGroup", "CollectiveFailed", "report", "use"]

register()
