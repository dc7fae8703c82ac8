"""What is wrong with a built page: requests to elsewhere, links that lead nowhere, pictures without words."""

import pytest

from lessons_lib.course.site import pages


@pytest.fixture
def site(tmp_path):
    """site(name=text, ...) -> what is wrong with a folder of these files; in names _ stands for the dot."""

    def made(**texts: str) -> list[str]:
        for name, text in texts.items():
            (tmp_path / name.replace("_", ".")).write_text(text)
        return pages.problems(tmp_path)

    return made


LOADS = [
    '<img src="https://example.org/x.png" alt="x">',
    '<img srcset="//example.org/x.png 2x" alt="x">',
    '<script src="http://cdn.example.org/x.js"></script>',
    '<link rel="stylesheet" href="https://example.org/x.css">',
    '<link rel="preconnect" href="https://example.org">',
    '<iframe src="HTTPS://example.org"></iframe>',
    '<svg><use href="https://example.org/x.svg#a"></use></svg>',
    '<p style="background: url(https://example.org/x.png)">',
    "<style>@import 'https://example.org/x.css';</style>",
    "<script>import('https://cdn.example.org/x.mjs')</script>",
    "<script>let at = '//cdn.example.org/x.js'</script>",
    '<form><input type="image" src="https://example.org/x.png"></form>',
]


@pytest.mark.parametrize("text", LOADS)
def test_whatever_a_browser_would_load_from_elsewhere_is_found(site, text):
    (problem,) = site(a_html=text)
    assert problem.startswith("a.html: loads ") and "example.org" in problem


@pytest.mark.parametrize(
    "text",
    [
        '<a href="https://example.org">elsewhere</a>',
        '<link rel="canonical" href="https://example.org/a.html">',
        '<svg xmlns="http://www.w3.org/2000/svg"></svg>',
        "<script>const svg = 'http://www.w3.org/2000/svg' // see https://example.org\n</script>",
        '<img src="data:image/png;base64,AAAA" alt="x">',
    ],
)
def test_what_leads_elsewhere_only_when_clicked_is_allowed(site, text):
    assert site(a_html=text) == []


def test_style_sheets_and_scripts_are_read_as_well(site):
    found = site(
        a_css="@font-face { src: url(//fonts.example.org/a.woff) }", a_js='load("https://cdn.example.org/a.js")'
    )
    assert found == ["a.css: loads //fonts.example.org/a.woff", "a.js: loads https://cdn.example.org/a.js"]


@pytest.mark.parametrize(
    "link, said",
    [
        ("b.html", ""),
        ("b.html#here", ""),
        ("#top", ""),
        ("b.html#there", "a.html: leads to no place on its page: b.html#there"),
        ("#here", "a.html: leads to no place on its page: #here"),
        ("c.html", "a.html: leads to no file: c.html"),
        ("../b.html", "a.html: leads to no file: ../b.html"),
        ("http://", "a.html: not an address: http://"),
        ("https://two words.org", "a.html: not an address: https://two words.org"),
        ("htp://example.org", "a.html: not an address: htp://example.org"),
        ("https://example.org:80/a?b=c#d", ""),
        ("mailto:a@example.org", ""),
    ],
)
def test_links_lead_somewhere(site, link, said):
    assert site(a_html=f'<h1 id="top"></h1><a href="{link}">x</a>', b_html='<p id="here">') == [said] * bool(said)


def test_a_picture_needs_a_file_and_words(site):
    assert site(a_html='<img src="x.png" alt="words">') == ["a.html: leads to no file: x.png"]
    assert site(a_html='<img src="x.png" alt=" ">', x_png="") == ["a.html: a picture without alt text: x.png"]
