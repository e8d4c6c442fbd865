"""Makes a network with fewer channels than its builder asks for, or without dropout, and nothing else changed."""
import contextlib
import inspect

from torch import nn

KINDS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
WIDTHS = ("in_channels", "out_channels", "in_features", "out_features", "num_features")


@contextlib.contextmanager
def narrowed(factor, kept):
    """Within, convolutions, linear layers and norms are made with a `factor`th of their channels, at least one. Sizes
    in `kept`, such as those of the image and of the classes, stay. Networks whose forward() names no sizes take it."""
    def maker(original):
        signature = inspect.signature(original)

        def make(self, *args, **options):
            given = signature.bind(self, *args, **options).arguments
            if given.get("groups", 1) == given.get("in_channels"):
                given["groups"] = size(given["groups"])
            for name in set(WIDTHS) & set(given):
                given[name] = size(given[name])
            rest = given.pop("kwargs", {})
            original(**given, **rest)
        return make

    def size(n):
        return n if n in kept else max(1, -(-n // factor))

    originals = [(kind, kind.__init__) for kind in KINDS]
    try:
        for kind, original in originals:
            kind.__init__ = maker(original)
        yield
    finally:
        for kind, original in originals:
            kind.__init__ = original


def still(net):
    """The network, whose dropouts drop nothing."""
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return net
