"""``python -m tests.docs`` regenerates the parts of the pages that come from the program."""

from tests.docs.generated import ROOT, pages, regenerated, rule_pages

for path, text in rule_pages().items():
    path.write_text(text)
for path in pages():
    before = path.read_text()
    if (after := regenerated(before)) != before:
        path.write_text(after)
        print(path.relative_to(ROOT))
