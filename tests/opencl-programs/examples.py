#!/usr/bin/env python3
"""ViennaCL's examples out of the pages of its manual that show them, the only place where Debian's packages have them.

    examples.py PAGES FOLDER NAME...     NAME is that of an example, such as fft.cpp, which becomes FOLDER/vienna_fft.cpp

What is there already stays as it is, so that it is not built again.
"""
import html
import pathlib
import re
import sys

LINE = re.compile(r'<a name="l\d+"></a><span class="lineno"> *\d+</span>&#160;(.*?)</div>')


def page_of(pages: pathlib.Path, name: str) -> pathlib.Path:
    """Names that are not the only ones of their kind have a folder in front."""
    page = name.replace("_", "__").replace(".", "_8") + "_source.html"
    return next(path for path in (pages / page, pages / f"examples_2tutorial_2{page}") if path.exists())


def source_of(page: str) -> str:
    lines = (html.unescape(re.sub("<[^>]*>", "", line)) for line in LINE.findall(page))
    return "".join(line.replace("\xa0", " ") + "\n" for line in lines)


def main() -> None:
    pages, folder, *names = sys.argv[1:]
    for name in names:
        page = page_of(pathlib.Path(pages), name).read_text(encoding="utf-8", errors="replace")
        path, source = pathlib.Path(folder) / f"vienna_{name}", source_of(page)
        if not path.exists() or path.read_text() != source:
            path.write_text(source)


main()
