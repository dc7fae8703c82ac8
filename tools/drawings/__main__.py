"""Draw imgs/ (`make figures`). The same code produces the same bytes."""

from lessons_lib.course.display import save
from lessons_lib.paths import ROOT
from tools.drawings import GALLERY

if __name__ == "__main__":
    for name, draw in GALLERY.items():
        print(save(draw(), ROOT / "imgs" / f"{name}.png").relative_to(ROOT))
