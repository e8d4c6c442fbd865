"""Models for scripts/exports: randomly initialised, small, and each with its loss inside."""
import importlib
import re
from dataclasses import dataclass, field
from typing import Callable


@dataclass
class Model:
    """`build` makes the module, whose forward() takes the tensors of `sample` in their order and returns the loss."""
    name: str
    build: Callable
    sample: Callable              # a torch.Generator -> {name: tensor}, samples in dim 0
    lr: float = 0.05          # None: the first step is to take a hundredth from the loss
    steps: int = 10               # fewer of deep networks with batch normalisation, where rounding grows from step to step
    random: bool = False          # draws random numbers: compared by mean and deviation
    validates: bool = True        # has samples, of which some can be kept for a validation
    says: dict = field(default_factory=dict)  # exporter -> a pattern of the note or refusal that is to come

    def expected(self, exporter):
        return re.compile(self.says[exporter]) if exporter in self.says else None


# Why a default export may be refused: its optimiser computed ahead, merged or took out what cannot be brought back.
LOST = re.compile("which the exporter folded into .*though the model was in training mode|"
                  "folded into ConvTranspose .*though the model was in training mode|"
                  "by arithmetic, which would no longer be trained through|and repeats its numbers|nothing is left|"
                  "was called with a detached value|was merged with|the two would train apart|"
                  "have numbers in common: they would train apart")

_models = []


def model(sample, name=None, **options):
    """Registers a function or a class without arguments that makes a module."""
    def register(build):
        _models.append(Model(name or build.__name__.lower().strip("_"), build, sample, **options))
        return build
    return register


def all_models():
    """The models, and the files that cannot be read for want of a package: {package: file}."""
    missing = {}
    for file in ("basics", "losses", "stateful", "ahead", "images", "tv_zoo", "timm_images", "sequences", "language", "outputs",
                 "hf_text", "hf_senses", "graphs", "operators", "edges"):
        try:
            importlib.import_module(f"export_models.{file}")
        except ModuleNotFoundError as error:
            missing[error.name] = f"{file}.py"
    return _models, missing
