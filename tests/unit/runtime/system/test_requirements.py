import pytest

from smidgen.runtime.system import requirements
from smidgen.runtime.system.requirements import CORE, Requirement, read_requirements


@pytest.mark.parametrize(
    ("line", "extra", "found"),
    [
        ("torch", CORE, Requirement("torch")),
        ("torch>=2.4", CORE, Requirement("torch", "2.4")),
        ("torch<3,>=2.4; extra == 'x'", "x", Requirement("torch", "2.4")),
        ('torch (<3, >= 2.4) ; extra == "x"', "x", Requirement("torch", "2.4")),
        ("uvicorn!=0.30,~=0.29", CORE, Requirement("uvicorn", "0.29")),
        ("ruff==0.6.*; extra == 'x'", "x", Requirement("ruff", "0.6")),
        ("torch<3; extra == 'x'", "x", Requirement("torch")),
        ("mkdocstrings[python]<2,>=1.0", CORE, Requirement("mkdocstrings", "1.0")),
        ("tool @ https://example.org/tool.whl ; extra == 'x'", "x", Requirement("tool")),
    ],
)
def test_a_line_in_any_order_has_its_least_version_and_its_marker(
    monkeypatch, line, extra, found
):
    monkeypatch.setattr(requirements.metadata, "requires", lambda package: [line])
    assert read_requirements("whole")[extra] == (found,)
