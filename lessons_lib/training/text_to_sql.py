"""Text-to-SQL (lesson 13): tables, questions and their SQL, all made from word lists, as a task to fine-tune on.

A prompt holds one or two CREATE TABLE statements and a question; the answer is one SELECT. Template text has little
entropy, so methods can be compared on it with each other, but not with published numbers. The hard form quotes random
strings, which no model can guess before it has read them.
"""

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from lessons_lib.training.collect import Text

SIZES = {"train": 40_000, "validation": 500, "test": 2_000}  # examples of each split
KINDS = {  # 200 string values by what they name
    "person": "Adler, Baker, Carter, Diaz, Evans, Fischer, Garcia, Hughes, Ivanov, Jensen, Keller, Lopez, Meyer, "
    "Novak, Olsen, Parker, Quinn, Rossi, Silva, Turner, Ueda, Vargas, Weber, Xu, Young, Zimmer, Brandt, Cohen, Duval, "
    "Ekman",
    "city": "Lisbon, Oslo, Prague, Madrid, Vienna, Dublin, Athens, Warsaw, Geneva, Munich, Hamburg, Naples, Seville, "
    "Porto, Lyon, Ghent, Bergen, Tampere, Krakow, Riga, Boston, Denver, Austin, Toronto, Lima, Quito, Osaka, Kyoto, "
    "Mumbai, Cairo",
    "country": "France, Spain, Norway, Sweden, Poland, Italy, Greece, Ireland, Portugal, Austria, Belgium, Finland, "
    "Denmark, Canada, Mexico, Brazil, Chile, Peru, Japan, India, Egypt, Kenya, Ghana, Turkey, Iceland",
    "company": "Acme Corp, Blue River, Northwind, Silver Oak, Redwood Labs, Bright Star, Delta Works, Green Valley, "
    "Iron Gate, Sun Harbor, Stone Bridge, Clear Water, Golden Leaf, Grand Union, Harvest Moon, Lake View, Maple Group, "
    "Ocean Line, Pine Hill, Quick Step, Rapid Air, Snow Peak, True North, West Coast, Wild Rose",
    "color": "red, blue, green, black, white, yellow, orange, purple, brown, gray, pink, silver, gold, beige, violet",
    "language": "English, French, German, Spanish, Italian, Polish, Greek, Danish, Finnish, Swedish, Arabic, Hindi, "
    "Japanese, Turkish, Korean",
    "genre": "comedy, drama, horror, thriller, fantasy, romance, mystery, western, adventure, animation, biography, "
    "history, jazz, rock, folk, opera, satire, science, poetry, travel",
    "material": "steel, wood, glass, plastic, leather, cotton, copper, granite, marble, concrete, bamboo, rubber, "
    "carbon, titanium, brick",
    "status": "active, closed, pending, new, expired, reserved, canceled, approved, delayed, open",
    "category": "sports, music, garden, kitchen, office, health, school, family, beauty, fashion, outdoor, charity, "
    "business, culture, technology",
}
VALUES = {kind: names.split(", ") for kind, names in KINDS.items()}
THEMES = (  # 60 table nouns; 120 columns: text columns with the kind of their values, integers, reals
    (
        "employees students teachers players singers authors doctors customers visitors volunteers",
        "full_name:person home_city:city home_country:country employer:company native_language:language "
        "favorite_color:color membership_status:status",
        "age_in_years birth_year years_active number_of_children badge_number training_hours awards_won",
        "annual_salary height_cm weight_kg average_score travel_distance bonus_rate",
    ),
    (
        "hotels museums airports stadiums parks libraries hospitals restaurants stations warehouses",
        "director_name:person located_city:city located_country:country operating_company:company "
        "main_language:language wall_material:material opening_status:status",
        "opening_year number_of_rooms daily_visitors staff_count floor_count parking_spaces review_count",
        "floor_area ticket_price guest_rating yearly_budget distance_to_center energy_use",
    ),
    (
        "phones cameras bicycles chairs laptops shoes watches jackets toys lamps",
        "brand_name:company shell_color:color made_in_country:country body_material:material "
        "product_category:category manual_language:language stock_status:status",
        "release_year units_sold warranty_months stock_level battery_hours model_number return_count",
        "unit_price net_weight shipping_cost discount_rate customer_rating production_cost",
    ),
    (
        "movies songs albums novels paintings podcasts magazines games plays documentaries",
        "creator_name:person premiere_city:city origin_country:country publisher_name:company "
        "spoken_language:language main_genre:genre release_status:status",
        "published_year copies_sold page_count chapter_count episode_count minimum_age prize_count",
        "critic_score audience_score production_budget box_office running_hours royalty_rate",
    ),
    (
        "concerts conferences tournaments festivals exhibitions workshops auctions races elections parades",
        "organizer_name:person host_city:city host_country:country sponsor_name:company event_language:language "
        "event_category:category booking_status:status",
        "event_year total_attendance duration_days team_count round_count helper_count edition_number",
        "entry_fee total_revenue prize_money insurance_cost approval_rate noise_level",
    ),
    (
        "cars trucks trains ships airplanes buses motorcycles tractors ferries helicopters",
        "driver_name:person base_city:city registered_country:country maker_name:company paint_color:color "
        "hull_material:material service_status:status",
        "build_year seat_count engine_power total_mileage door_count axle_count repair_count",
        "top_speed fuel_capacity cargo_weight purchase_price fuel_consumption hourly_cost",
    ),
)

# Families of questions, several wordings each, and their SQL. t, u: tables. a, b: any columns. s: a text column with
# values v, x, y; r: another one with value w. n, m: number columns, n with values i < j. o: a number column of u.
# k: a small count. All columns of one table differ.
FAMILIES = {
    "where": (
        (
            "What are the {a} and the {b} of the {t} whose {s} is {v}?",
            "Show the {a} and the {b} of all {t} with {s} {v}.",
            "List {a} and {b} for every one of the {t} that has the {s} {v}.",
        ),
        "SELECT {a}, {b} FROM {t} WHERE {s} = '{v}'",
    ),
    "compare": (
        (
            "Which {a} do the {t} with a {n} above {i} have, and which {s}?",
            "Give the {a} and the {s} of the {t} whose {n} is greater than {i}.",
        ),
        "SELECT {a}, {s} FROM {t} WHERE {n} > {i}",
    ),
    "below": (
        (
            "Give the {a} and the {s} of the {t} whose {n} is at most {i}.",
            "For {t} with a {n} of {i} or less, show the {a} and the {s}.",
        ),
        "SELECT {a}, {s} FROM {t} WHERE {n} <= {i}",
    ),
    "count": (
        ("How many {t} have the {s} {v} and a {n} below {i}?", "Count the {t} with {s} {v} whose {n} is under {i}."),
        "SELECT COUNT(*) FROM {t} WHERE {s} = '{v}' AND {n} < {i}",
    ),
    "max": (
        ("What is the highest {n} of the {t} with {s} {v}?", "Find the maximum {n} among {t} whose {s} is {v}."),
        "SELECT MAX({n}) FROM {t} WHERE {s} = '{v}'",
    ),
    "min": (
        ("What is the lowest {n} of the {t} with {s} {v}?", "Find the minimum {n} among {t} whose {s} is {v}."),
        "SELECT MIN({n}) FROM {t} WHERE {s} = '{v}'",
    ),
    "average": (
        (
            "What are the average {n} and the total {m} of the {t} with {s} {v}?",
            "Compute the mean {n} and the sum of the {m} over all {t} whose {s} is {v}.",
        ),
        "SELECT AVG({n}), SUM({m}) FROM {t} WHERE {s} = '{v}'",
    ),
    "top": (
        (
            "Show the {a} and the {s} of the {k} {t} with the highest {n}.",
            "Which {a} and {s} do the top {k} {t} by {n} have?",
            "List {a} and {s} of the {k} {t} that have the largest {n}.",
        ),
        "SELECT {a}, {s} FROM {t} ORDER BY {n} DESC LIMIT {k}",
    ),
    "sorted": (
        (
            "List the {a} of the {t} with {s} {v}, sorted by {n}.",
            "Order the {t} whose {s} is {v} by {n} and show their {a}.",
        ),
        "SELECT {a} FROM {t} WHERE {s} = '{v}' ORDER BY {n} ASC",
    ),
    "having": (
        (
            "Which {s} have more than {k} {t}?",
            "Find every {s} that occurs for more than {k} of the {t}.",
        ),
        "SELECT {s} FROM {t} GROUP BY {s} HAVING COUNT(*) > {k}",
    ),
    "group": (
        (
            "What is the average {n} of the {t} for each {s}?",
            "For every {s}, give the mean {n} of the {t}.",
        ),
        "SELECT {s}, AVG({n}) FROM {t} GROUP BY {s}",
    ),
    "both": (
        (
            "What is the {a} of the {t} whose {s} is {v} and whose {r} is {w}?",
            "Show the {a} of {t} that have both {s} {v} and {r} {w}.",
        ),
        "SELECT {a} FROM {t} WHERE {s} = '{v}' AND {r} = '{w}'",
    ),
    "either": (
        (
            "What is the {a} of the {t} whose {s} is {v} or whose {n} is above {i}?",
            "Show the {a} of {t} with {s} {v} or a {n} greater than {i}.",
        ),
        "SELECT {a} FROM {t} WHERE {s} = '{v}' OR {n} > {i}",
    ),
    "in": (
        (
            "Show the {a} of the {t} whose {s} is {v}, {x} or {y}.",
            "Which {a} do {t} have whose {s} is one of {v}, {x} and {y}?",
        ),
        "SELECT {a} FROM {t} WHERE {s} IN ('{v}', '{x}', '{y}')",
    ),
    "between": (
        (
            "Give the {a} of the {t} with a {n} between {i} and {j}.",
            "Which {a} do {t} have whose {n} is from {i} to {j}?",
        ),
        "SELECT {a} FROM {t} WHERE {n} BETWEEN {i} AND {j}",
    ),
    "distinct": (
        (
            "What are the different {s} of the {t} with a {n} above {i}?",
            "List each {s} once that occurs among {t} whose {n} is greater than {i}.",
        ),
        "SELECT DISTINCT {s} FROM {t} WHERE {n} > {i}",
    ),
    "above average": (
        (
            "Which {a} do the {t} have whose {n} is above the average {n}?",
            "Show the {a} of all {t} with a {n} greater than the mean.",
        ),
        "SELECT {a} FROM {t} WHERE {n} > (SELECT AVG({n}) FROM {t})",
    ),
    "join": (
        (
            "Pair {t} and {u} of the same {s}: show the {n} of the {t} and the {o} of the {u}.",
            "For {t} and {u} that share their {s}, give the {n} of the {t} and the {o} of the {u}.",
        ),
        "SELECT {t}.{n}, {u}.{o} FROM {t} JOIN {u} ON {t}.{s} = {u}.{s}",
    ),
}


@dataclass(frozen=True)
class Example:
    """One task: the CREATE TABLE statements, a question about them and its SQL. family: a key of FAMILIES."""

    family: str
    schema: str
    question: str
    sql: str

    @property
    def prompt(self) -> str:
        """What the model reads; the answer follows after a space."""
        return f"{self.schema}\nQuestion: {self.question}\nSQL:"


def text_to_sql(count: int, split: str = "train", hard: bool = False) -> list[Example]:
    """The first `count` examples of a split, all different. hard: the quoted values are random strings.

    No table with the same name and columns is in two splits. Raises ValueError for an unknown split.
    """
    if split not in SIZES:
        raise ValueError(f"split={split!r} is not known; choose one of: {', '.join(SIZES)}.")
    numbers, found = random.Random(f"0 {split} {hard}"), {}
    while len(found) < count:
        example = _example(numbers, split, hard)
        found.setdefault(example.prompt, example)
    return list(found.values())


def split_of(table: str, columns: Sequence[str]) -> str:
    """The split of a table with these columns in any order: two tenths are for test, one for validation."""
    tenth = crc32(f"{table}: {' '.join(sorted(columns))}".encode()) % 10
    return "test" if tenth < 2 else "validation" if tenth < 3 else "train"


def encode(tokenizer, examples: Sequence[Example]) -> list[Text]:
    """Ids of prompt, SQL and the end-of-sequence token; only SQL and end count in training and evaluation."""
    prompts = tokenizer([example.prompt for example in examples]).input_ids
    answers = tokenizer([" " + example.sql for example in examples]).input_ids
    return [
        Text(f"sql/{number}", [*prompt, *answer, tokenizer.eos_token_id], len(prompt))
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]


# --- Making an example


def _example(numbers: random.Random, split: str, hard: bool) -> Example:
    """Draw a family, then tables of this split until they have the columns that it asks for."""
    family = numbers.choice(list(FAMILIES))
    wordings, sql = FAMILIES[family]
    while True:
        names, *columns = numbers.choice(THEMES)
        kinds = dict(column.split(":") for column in columns[0].split())
        types = dict.fromkeys(kinds, "TEXT") | dict.fromkeys(columns[1].split(), "INTEGER")
        types |= dict.fromkeys(columns[2].split(), "REAL")
        chosen = numbers.sample(names.split(), 2 if family == "join" else 1)
        tables = [(name, numbers.sample(list(types), numbers.randint(3, 6))) for name in chosen]
        if all(split_of(*table) == split for table in tables) and (slots := _columns(numbers, sql, tables, types)):
            break
    # values: strings of the column's kind, numbers in a range that fits the column
    slots |= dict(zip("tu", (name for name, _ in tables), strict=False))
    values = {}
    if "s" in slots:
        values |= zip("vxy", numbers.sample(VALUES[kinds[slots["s"]]], 3), strict=True)
    if "r" in slots:
        values["w"] = numbers.choice(VALUES[kinds[slots["r"]]])
    if hard:
        values = {slot: _random_string(numbers) for slot in values}
    values["k"] = numbers.randint(2, 9)
    if "n" in slots:
        values |= zip("ij", _range(numbers, slots["n"], types[slots["n"]]), strict=True)
    said = {slot: name.replace("_", " ") for slot, name in slots.items()}
    schema = "\n".join(f"CREATE TABLE {t} ({', '.join(f'{c} {types[c]}' for c in columns)});" for t, columns in tables)
    question = numbers.choice(wordings).format(**said, **values)
    return Example(family, schema, question, sql.format(**slots, **values))


def _columns(numbers: random.Random, sql: str, tables: list, types: dict[str, str]) -> dict[str, str] | None:
    """Columns for the slots of a family, all different; None if the tables have too few.

    In a join, s is in both tables, n in the first and o in the second.
    """
    first, last = tables[0][1], tables[-1][1]
    free = numbers.sample(first, len(first))
    found = {}
    for slot in "srnmab":
        if f"{{{slot}}}" in sql:
            fits = [c for c in free if slot in "ab" or (types[c] == "TEXT") == (slot in "sr")]
            if slot == "s" and len(tables) == 2:
                fits = [c for c in fits if c in last]
            if not fits:
                return None
            found[slot] = fits[0]
            free.remove(fits[0])
    if "{o}" in sql:
        others = [c for c in last if types[c] != "TEXT"]
        if not others:
            return None
        found["o"] = numbers.choice(others)
    return found


def _range(numbers: random.Random, column: str, kind: str) -> tuple[str, str]:
    """Two numbers in ascending order that fit a column."""
    if column.endswith("year"):
        return tuple(map(str, sorted(numbers.sample(range(1950, 2025), 2))))
    if kind == "INTEGER":
        return tuple(map(str, sorted(numbers.sample(range(2, 500), 2))))
    return tuple(f"{tenths / 10:.1f}" for tenths in sorted(numbers.sample(range(5, 1000), 2)))


def _random_string(numbers: random.Random) -> str:
    """Six to ten lower-case letters and digits."""
    return "".join(numbers.choices(string.ascii_lowercase + string.digits, k=numbers.randint(6, 10)))
