"""PyTorch's exporters, as scripts/exports calls them."""
import contextlib
import copy
import logging
import os
import pathlib
import sys
import warnings

import torch

EXPORTERS = ["dynamo", "default", "legacy"]


def export(module, args, names, stem):
    """[(exporter, path or the exception that it ended in, the module thereafter)]: the older one runs it once, which
    moves running statistics. The default export is what the newer exporter writes, optimised: that is all that
    optimize=True does."""
    paths = {e: pathlib.Path(f"{stem}.{e}.onnx") for e in EXPORTERS}
    out = []
    with quiet():
        try:
            program = torch.onnx.export(copy.deepcopy(module).train(), args, dynamo=True, optimize=False,
                                        input_names=names, verbose=False)
            program.save(paths["dynamo"], external_data=False)
            out.append(("dynamo", paths["dynamo"], module))
            program.optimize()
            program.save(paths["default"], external_data=False)
            out.append(("default", paths["default"], module))
        except Exception as error:
            out.append(("dynamo" if not out else "default", error, module))
        moved = copy.deepcopy(module).train()
        try:
            torch.onnx.export(moved, args, paths["legacy"], dynamo=False, input_names=names,
                              training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
            out.append(("legacy", paths["legacy"], moved))
        except Exception as error:
            out.append(("legacy", error, module))
    return out


@contextlib.contextmanager
def quiet():
    """Exporters print and warn at length, from C++ too."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with open(os.devnull, "w") as nothing, warnings.catch_warnings():
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for fd, original in zip((1, 2), kept):
                os.dup2(original, fd)
                os.close(original)
            logging.disable(disabled)
