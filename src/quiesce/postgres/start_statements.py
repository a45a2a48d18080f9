"""The statements about `record_start`."""

# Losing the last rows with the server would make nobody careless: they are about the death of a process. So no commit
# waits for the disk.
_QUICK = "(SELECT set_config('synchronous_commit', 'off', true)) AS quick"

NOTE = f"""
UPDATE record_start AS s SET
    first_offset = n.first_offset, last_offset = n.last_offset,
    suspect_first = n.suspect_first, suspect_last = n.suspect_last,
    deaths = s.deaths - string_to_array(n.settled, ','), changed_at = now()
FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[])
        AS n (consumer, topic, partition, first_offset, last_offset, suspect_first, suspect_last, settled),
    {_QUICK}
WHERE s.consumer = n.consumer AND s.topic = n.topic AND s.partition = n.partition AND s.owner = $9
RETURNING s.consumer, s.topic, s.partition
"""  # noqa: S608 - a piece of our own
"""Writes what is in hand now, where we are still the owner. Partitions that do not come back have another."""

APPEAR = f"""
INSERT INTO record_start (consumer, topic, partition, owner)
SELECT n.consumer, n.topic, n.partition, $4
FROM unnest($1::text[], $2::text[], $3::int[]) AS n (consumer, topic, partition), {_QUICK}
ORDER BY 1, 2, 3
ON CONFLICT DO NOTHING
"""  # noqa: S608 - a piece of our own

LOOK = """
SELECT s.consumer, s.topic, s.partition, s.owner, s.first_offset, s.last_offset, s.suspect_first, s.suspect_last,
    s.deaths::text
FROM record_start AS s
JOIN unnest($1::text[], $2::text[], $3::int[]) AS n (consumer, topic, partition)
    ON s.consumer = n.consumer AND s.topic = n.topic AND s.partition = n.partition
ORDER BY 1, 2, 3 FOR UPDATE OF s
"""

TAKE = """
UPDATE record_start SET owner = $4, first_offset = $5, last_offset = $6, suspect_first = $7, suspect_last = $8,
    deaths = $9::text::jsonb, changed_at = now()
WHERE consumer = $1 AND topic = $2 AND partition = $3
"""
"""Of one partition that was looked at in the same transaction."""
