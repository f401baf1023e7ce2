"""The README's example runs."""

import pathlib
import re

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_the_first_python_block_runs():
    block = re.search(r"^```python\n(.*?)^```", README.read_text(), re.S | re.M)
    assert block, "README.md has no python block"
    exec(compile(block[1], str(README), "exec"), {"__name__": "readme"})
