"""What others alter beneath a capture: the catalogue, publications, and the logs themselves."""

import pytest

pytestmark = pytest.mark.nightly
TABLE = (
    "create table t (id int primary key, v int)",
    "insert into t select i, i from generate_series(1, 5) i",
)


def test_a_column_that_is_added_while_it_is_followed(shop):
    """Its first values come with what describes it, which has no position of its own."""
    shop.sql(*TABLE)
    with shop.followed() as told:
        shop.postgres.until(lambda: told and told[-1].position)
        shop.sql(
            "begin; alter table t add w text; insert into t values (7, 7, 'seven'); commit",
            "update t set w = 'one' where id = 1",
        )
        shop.postgres.until(lambda: len(shop.rows()) == 6)
        shop.sql("insert into t values (8, 8, 'eight')")
        shop.postgres.until(lambda: len(shop.rows()) == 7)
    shop.check()
