"""Sphinx."""

import sys
from pathlib import Path

import synkhronos

sys.path.append(str(Path(__file__).parent))  # of command_lines and others

project = "Synkhronos"
author = "Synkhronos developers"
copyright = "2026, Synkhronos developers"
version = release = synkhronos.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "command_lines",
    "mistakes_list",
    "source_links",
]
exclude_patterns = ["_build", "gpu_report.rst"]  # the latter is part of benchmarks.rst
default_role = "py:obj"
# notebooks are run while the pages are built; what they kept is for those who read them elsewhere
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True
# small inventories of the names that these pages use: the build needs no network
intersphinx_mapping = {
    "numpy": ("https://numpy.org/doc/stable/", "inventories/numpy.inv"),
    "python": ("https://docs.python.org/3/", "inventories/python.inv"),
}
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_extra_path = ["llms.txt"]
pygments_style = "tango"  # has colours for the lines of a diff
highlight_language = "text"  # a block says what it is; Python by `code-block` or `highlight`
html_title = f"Synkhronos {release}"

autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
doctest_test_doctest_blocks = "default"
doctest_global_setup = """
import pytensor
pytensor.config.mode, pytensor.config.cxx = "FAST_COMPILE", ""  # wait for no compiler
import numpy as np
from synkhronos import get_n_gpu
from synkhronos.extensions import Batches, Loader, checkpoints, updates
from synkhronos.testing.conformance import check_channel, check_communicator
from synkhronos.testing.leaks import check, snapshot
from synkhronos.testing.nodes import serve_first
globals().update({k: v for k, v in vars(updates).items() if not k.startswith("_")})
Checkpoints = checkpoints.Checkpoints
"""
trim_doctest_flags = True
