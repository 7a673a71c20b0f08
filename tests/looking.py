"""Who looks at numbers while they are computed."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Looks(TorchDispatchMode):
    """Counts how often somebody looks at a number, for which a GPU would be waited for."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        names = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal")
        self.count += func.overloadpacket.__name__ in names
        return func(*args, **(kwargs or {}))
