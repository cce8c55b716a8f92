"""Hooks of mkdocs: generated pages of the reference, links that leave docs/, and docs/llms.txt.

python release/site_hooks.py            prints what docs/llms.txt must be
python release/site_hooks.py --write    writes it
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reference

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CONFIG = ROOT / "mkdocs.yml"
LLMS = DOCS / "llms.txt"
REPOSITORY = "repository"  # files outside of docs/ that pages link to are shown below this folder of the site
IN_NAVIGATION = ("CONTRIBUTING.md",)
LANGUAGES = {".py": "python", ".sh": "sh", ".c": "c", ".h": "c", ".json": "json", ".toml": "toml", ".yml": "yaml"}
MAX_SHOWN = 100_000  # bytes of a file; of a longer one the beginning is shown
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)
PAGE = re.compile(r"^ *- (?:[^:#]+: )?(\S+\.md)(?: +# (.+))?$", re.MULTILINE)


# ---- the navigation ----


def read_navigation() -> dict[str, str]:
    """The pages in the nav of mkdocs.yml, path below docs/ -> what they are about (the comment behind the path)."""
    navigation = CONFIG.read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return dict(PAGE.findall(navigation))


def write_llms() -> str:
    """docs/llms.txt: every section and page of the nav, a line each."""
    lines = [
        "# Antiphon",
        "",
        "> Plans collective communication for the machine it will run on; every schedule is verified.",
        "",
    ]
    for line in CONFIG.read_text(encoding="utf-8").partition("\nnav:\n")[2].splitlines():
        if section := re.fullmatch(r"  - ([^:]+):", line):
            lines += ["", f"## {section[1]}", ""]
        elif page := re.match(r" *- (?:([^:#]+): )?(\S+\.md)(?: +# (.+))?$", line):
            title = page[1] or read_title(page[2])
            link = page[2].replace(f"{REPOSITORY}/", "../")
            lines.append(f"- [{title}]({link})" + (f": {page[3]}" if page[3] else ""))
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def read_title(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


# ---- pages that are generated ----


def build_pages() -> dict[str, str]:
    """All pages that are not files of docs/: the reference, and what pages of docs/ link to outside of it."""
    pages = reference.build_reference()
    pages |= {shown_at(target): show_file(target) for target in IN_NAVIGATION}
    unread = [*IN_NAVIGATION, *(path.relative_to(ROOT).as_posix() for path in sorted(DOCS.rglob("*.md")))]
    while unread:  # a page that is shown may link to further ones
        for target in links_that_leave(unread.pop()):
            if shown_at(target) not in pages:
                pages[shown_at(target)] = show_file(target)
                unread += [target] if target.endswith(".md") else []
    return pages


def links_that_leave(source: str) -> Iterator[str]:
    """The files of the repository outside of docs/ to which a page (a path from the root) links."""
    prose = FENCE.sub("", (ROOT / source).read_text(encoding="utf-8"))
    for link in LINK.finditer(prose):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        if not target.startswith(("docs/", "..")) and (ROOT / target).exists():
            yield target


def shown_at(target: str) -> str:
    """Where the site shows a file or folder of the repository: a path below docs/."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"{REPOSITORY}/{target}" if target.endswith(".md") else f"{REPOSITORY}/{target}.md"


def show_file(target: str) -> str:
    """The page of a file (Markdown as it is, all else as code) or of a folder (its files)."""
    path = ROOT / target
    if path.is_dir():
        return f"# {target}\n\n" + "\n".join(f"- `{file.name}`" for file in sorted(path.iterdir())) + "\n"
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".md":
        return text
    cut = "" if len(text) <= MAX_SHOWN else "\nThe beginning; the repository has all of it.\n"
    return f"# {target}\n{cut}\n````{LANGUAGES.get(path.suffix, 'text')}\n{text[:MAX_SHOWN]}\n````\n"


def relink(markdown: str, page: str) -> str:
    """Point links that leave docs/, or come from outside of it, at where the site has their targets."""
    source = page.removeprefix(f"{REPOSITORY}/") if page.startswith(f"{REPOSITORY}/") else f"docs/{page}"

    def replace(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        if target.startswith("..") or (source.startswith("docs/") and target.startswith("docs/")):
            return link[0]
        return link[1] + posixpath.relpath(shown_at(target), posixpath.dirname(page) or ".") + link[3]

    pieces = FENCE.split(
        re.sub(r"^```(\w+) .*", r"```\1", markdown, flags=re.MULTILINE)
    )  # "python notest": a note for tests
    return "".join(piece if k % 2 else _plain_pipes(LINK.sub(replace, piece)) for k, piece in enumerate(pieces))


def _plain_pipes(markdown: str) -> str:
    """Code in cells of tables: GitHub needs \\| there, where Python-Markdown wants a plain |."""
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("\\|", "|"), markdown)


# ---- what mkdocs calls ----


def on_config(config: Any) -> Any:
    """Add the generated pages to the section Reference."""
    command_line = [f"{reference.CLI_FOLDER}/index.md"]
    command_line += [path for path in reference.build_command_pages() if path not in command_line]
    modules = [f"{reference.PYTHON_FOLDER}/{name}.md" for name in reference.MODULES]
    (section,) = (entry["Reference"] for entry in config.nav if "Reference" in entry)
    section += [{"Command line": command_line}, {"Python API": modules}]
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for path, text in build_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    page.meta.setdefault("description", read_navigation().get(page.file.src_uri) or page.title)
    return markdown if page.file.src_uri.startswith("reference/") else relink(markdown, page.file.src_uri)


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        LLMS.write_text(write_llms(), encoding="utf-8")
    else:
        print(write_llms(), end="")
