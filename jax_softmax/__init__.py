"""Softmax, log-softmax and their losses as XLA custom calls: a drop-in for `jax.nn`."""

from importlib.metadata import version as _version

from ._absmax import absmax_quantize as absmax_quantize
from ._absmax import absmax_scale as absmax_scale
from ._logsumexp import logsumexp as logsumexp
from ._losses import softmax_cross_entropy as softmax_cross_entropy
from ._losses import (
    softmax_cross_entropy_with_integer_labels as softmax_cross_entropy_with_integer_labels,
)
from ._masked import masked_softmax as masked_softmax
from ._plan import Plan as Plan
from ._plan import plan as plan
from ._softmax import log_softmax as log_softmax
from ._softmax import softmax as softmax

__version__ = _version("jax-softmax")
