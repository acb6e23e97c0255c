"""Cases of the clause allocator.steady for every op and every module of torch's databases.

Each op is called with its smallest sample, forward and, if it has a derivative, backward. The databases take seconds to
load and a plan is made without them, so that a case takes every eighth op, or every second module, by number.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from conformance.checks.behaviour.differentiable import differentiable, replaced, tensors_in
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.allocator.leaks import judge_repeated
from devices.failure import Kind
from opinfo.database import DATABASE
from opinfo.module_catalog import ModuleEntry, module_entries
from opinfo.samples import Sample
from opinfo.subject import Subject
