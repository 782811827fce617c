package clog;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.ChangelogRange;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The changes of a log's table: pairs of images made by the source, so Spark adds nothing. */
final class ClogChanges implements Changelog {
  /** Options that Spark has read; {@link #optionsOf} says them again, from its context. */
  private static final Set<String> SPARKS = new TreeSet<>(String.CASE_INSENSITIVE_ORDER);

  static {
    for (String side : new String[] {"starting", "ending"}) {
      for (String what : new String[] {"Version", "Timestamp", "BoundInclusive"}) {
        SPARKS.add(side + what);
      }
    }
    SPARKS.add("deduplicationMode");
    SPARKS.add("computeUpdates");
  }

  private final ClogTable view;

  ClogChanges(
      String name, Map<String, String> options, ChangelogContext context, Map<String, String> given) {
    Map<String, String> asked = new HashMap<>(own(given));
    asked.putAll(optionsOf(context));
    this.view = new ClogTable(name, options, asked);
  }

  @Override
  public String name() {
    return view.name();
  }

  @Override
  public Column[] columns() {
    return view.columns();
  }

  @Override
  public boolean containsCarryoverRows() {
    return false;
  }

  /** Of mode "none" alone, which keeps them. */
  @Override
  public boolean containsIntermediateChanges() {
    return false;
  }

  @Override
  public boolean representsUpdateAsDeleteAndInsert() {
    return false;
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    return view.newScanBuilder(new CaseInsensitiveStringMap(own(given)));
  }

  private static Map<String, String> own(Map<String, String> given) {
    Map<String, String> own = new HashMap<>(given);
    own.keySet().removeIf(SPARKS::contains);
    return own;
  }

  private static Map<String, String> optionsOf(ChangelogContext context) {
    Map<String, String> options = new HashMap<>();
    options.put("view", "changes");
    options.put("deduplicationMode", context.deduplicationMode().value());
    ChangelogRange range = context.range();
    if (range instanceof ChangelogRange.VersionRange versions) {
      options.put("startingVersion", versions.startingVersion());
      versions.endingVersion().ifPresent(version -> options.put("endingVersion", version));
    } else if (range instanceof ChangelogRange.TimestampRange times) {
      // A log's times are whole milliseconds.
      boolean down = !times.startingBoundInclusive();
      options.put("startingTimestamp", millis(times.startingTimestamp(), down));
      times.endingTimestamp().ifPresent(
          us -> options.put("endingTimestamp", millis(us, times.endingBoundInclusive())));
    } else {
      return options;
    }
    options.put("startingBoundInclusive", Boolean.toString(range.startingBoundInclusive()));
    options.put("endingBoundInclusive", Boolean.toString(range.endingBoundInclusive()));
    return options;
  }

  private static String millis(long us, boolean down) {
    return Long.toString(down ? Math.floorDiv(us, 1000L) : -Math.floorDiv(-us, 1000L));
  }
}
