"""The site: generated pages are complete, the navigation has every page, and it builds without a warning."""

import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import readme_picture
import reference
import site_hooks

import antiphon

ROOT = Path(__file__).resolve().parent.parent


def test_every_command_has_its_part_of_the_reference() -> None:
    pages = reference.build_command_pages()
    headings = {line.lstrip("# ") for text in pages.values() for line in text.splitlines() if line.startswith("#")}
    commands = reference.list_commands()
    assert {"tune", "bench genmodel", "lab run"} <= set(commands)
    assert [name for name in commands if f"antiphon {name}" not in headings] == []
    assert "| `--against TOPO` | " in pages["reference/cli/tune.md"]
    assert "LD_PRELOAD=$(antiphon build mpi --table table.json) \\\n" in pages["reference/cli/build.md"]


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (name == "antiphon.torch")) for name in reference.MODULES
])  # fmt: skip # that of PyTorch takes seconds to load; the site has it, too
def test_every_public_name_is_in_the_reference(name: str) -> None:
    try:
        importlib.import_module(name)
    except antiphon.errors.Missing as missing:
        pytest.skip(str(missing))
    lines = reference.describe_module(name).splitlines()
    public = reference.list_public(name)
    assert public
    assert [entry for entry in public if f"## {entry}" not in lines] == []


def test_the_modules_are_those_that_the_package_lists() -> None:
    listed = {name.partition(".")[2] for name in reference.MODULES} - {"", "errors"}
    assert all(f"\n    {name} " in (antiphon.__doc__ or "") for name in listed)


def test_a_docstring_becomes_markdown() -> None:
    text = (
        "First line.\n\n`a`, `b`: two *numbers*,\nand more.\n`c`: another\n\n    run(a, b)\n\n"
        "Raises\n------\nInvalid\n    It is wrong.\nMissing\n    Not\n    installed."
    )
    assert reference.docstring_to_markdown(text) == (
        "First line.\n\n- `a`, `b`: two \\*numbers\\*, and more.\n- `c`: another\n\n```python\nrun(a, b)\n```\n\n"
        "**Raises**\n\n- `Invalid`: It is wrong.\n- `Missing`: Not installed.\n"
    )


def test_every_page_is_in_the_navigation() -> None:
    pages = {path.relative_to(site_hooks.DOCS).as_posix() for path in site_hooks.DOCS.rglob("*.md")}
    listed = {page for page in site_hooks.read_navigation() if not page.startswith(site_hooks.REPOSITORY)}
    assert listed == pages


def test_the_index_for_language_models_is_that_of_the_navigation() -> None:
    assert site_hooks.LLMS.read_text(encoding="utf-8") == site_hooks.write_llms(), (
        "run python release/site_hooks.py --write"
    )


def test_the_pictures_of_readme_show_what_was_measured() -> None:
    committed = {kind: path.read_text(encoding="utf-8") for kind, path in readme_picture.PICTURES.items()}
    assert committed == readme_picture.draw_pictures(), "run PYTHONPATH=bench python release/readme_picture.py"


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {antiphon.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_links_that_leave_the_documents_lead_to_copies() -> None:
    text = "[a](../examples/x.py) [b](mpi.md#c) [d](https://x.org)\n```sh\n[e](../f.py)\n```\n`a\\|b`"
    assert site_hooks.relink(text, "lab.md") == text.replace("../examples/x.py", "repository/examples/x.py.md").replace(
        "a\\|b", "a|b"
    )
    assert site_hooks.relink("[a](docs/mpi.md#b) [c](LICENSE)", "repository/CONTRIBUTING.md") == (
        "[a](../mpi.md#b) [c](LICENSE.md)"
    )


@pytest.mark.skipif(find_spec("material") is None, reason="needs mkdocs-material: pip install 'antiphon[docs]'")
@pytest.mark.parametrize("looks", ["plain", pytest.param("material", marks=pytest.mark.slow)])
def test_the_site_builds_without_a_warning(looks: str, tmp_path: Path) -> None:
    """Every page and link is read; templates and colours of code take most of the time, so `plain` has none."""
    config = ROOT / "mkdocs.yml"
    if looks == "plain":
        text = config.read_text(encoding="utf-8")
        for old, new in (
            ("name: material", f"name: null\n  custom_dir: {tmp_path / 'theme'}"),
            ("docs_dir: ", f"docs_dir: {ROOT}/"), ("  - release/", f"  - {ROOT}/release/"), ("  - search\n", "  []\n"),
            ("  - pymdownx.highlight\n", "  - pymdownx.highlight: {use_pygments: false}\n"),
        ):  # fmt: skip
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (tmp_path / "theme").mkdir()
        config = tmp_path / "mkdocs.yml"
        config.write_text(text, encoding="utf-8")
        (tmp_path / "theme" / "main.html").write_text("{{ page.content }}", encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = tmp_path / "site" / "reference"
    assert "--against" in (pages / "cli" / "tune.html").read_text()
    for name in ("antiphongroup", "collectivefailed", "report", "use") if find_spec("torch") else ():
        assert f'<h2 id="{name}">' in (pages / "python" / "antiphon.torch.html").read_text()
