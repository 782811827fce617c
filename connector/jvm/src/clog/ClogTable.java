package clog;

import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import com.fasterxml.jackson.core.JsonProcessingException;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsDeleteV2;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.DataSource;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A log as a table: reads are its table view, writes append records. A key has one row, so DELETE
 * by key needs none.
 */
class ClogTable implements SupportsRead, SupportsWrite, SupportsDeleteV2 {
  private static final Set<TableCapability> CAPABILITIES =
      EnumSet.of(TableCapability.BATCH_READ, TableCapability.BATCH_WRITE);

  private static final String DESCRIBED = "__described";
  private static final String KEY_COLUMNS = "table.key.columns";

  final StructType schema;
  final Described log;
  private final String name;
  private final Map<String, String> readOptions;
  private final Map<String, String> writeOptions;
  private final TableProvider reader;

  /** What the source tells of the log, beside its columns. */
  record Described(long version, String logId, List<String> key, Map<String, String> config) {
    private static final Described NOTHING = new Described(0, "", List.of(), Map.of());

    static Described of(StructField first) {
      if (!first.metadata().contains(DESCRIBED)) {
        return NOTHING;
      }
      try {
        return ClogStatement.JSON.readValue(first.metadata().getString(DESCRIBED), Described.class);
      } catch (JsonProcessingException e) {
        throw new IllegalStateException(e);
      }
    }
  }

  ClogTable(String name, Map<String, String> options, Map<String, String> at) {
    this.name = name;
    this.writeOptions = Map.copyOf(options);
    Map<String, String> read = new HashMap<>(options);
    read.put("view", "table");
    read.putAll(at);
    this.readOptions = Map.copyOf(read);
    this.reader = provider();
    StructField[] fields = reader.inferSchema(with(readOptions, Map.of(DESCRIBED, ""))).fields();
    this.log = Described.of(fields[0]);
    fields[0] = new StructField(
        fields[0].name(), fields[0].dataType(), fields[0].nullable(), Metadata.empty());
    this.schema = new StructType(fields);
  }

  /** The table of a log, whose rows can be changed if its key columns have names. */
  static ClogTable of(String name, Map<String, String> options, Map<String, String> at) {
    ClogTable table = new ClogTable(name, options, at);
    List<String> key = table.log.key();
    boolean hasKey = !key.isEmpty() && Set.of(table.schema.fieldNames()).containsAll(key);
    return hasKey ? new ClogRows(table) : table;
  }

  ClogTable(ClogTable same) {
    this.schema = same.schema;
    this.log = same.log;
    this.name = same.name;
    this.readOptions = same.readOptions;
    this.writeOptions = same.writeOptions;
    this.reader = same.reader;
  }

  /** The log's columns; raises if there is none, or one of others; makes it where they are given. */
  static StructType check(
      String name, Map<String, String> options, StructType asked, Map<String, String> configs) {
    Map<String, String> kept = ClogCatalog.withoutCreation(options);
    boolean isThere = false;
    try {
      new ClogTable(name, kept, Map.of()).plan();
      isThere = true;
    } catch (Exception e) { // Scala declares none that it throws
      if (asked.isEmpty() || !String.valueOf(e.getMessage()).contains("no log at ")) {
        throw e;
      }
      Map<String, String> all = new HashMap<>(options);
      configs.forEach((config, value) -> all.put("config." + config, value));
      if (configs.containsKey(KEY_COLUMNS)) { // As SHOW CREATE TABLE tells it.
        all.remove("config." + KEY_COLUMNS);
        all.put("keyColumns", configs.get(KEY_COLUMNS));
      }
      SparkSession.active().createDataFrame(List.<Row>of(), asked)
          .write().format("clog").options(all).mode(SaveMode.Append).save();
    }
    ClogTable table = new ClogTable(name, kept, Map.of());
    if (isThere && !table.log.config().entrySet().containsAll(configs.entrySet())) {
      throw new IllegalArgumentException(
          "the log at " + options.get("path") + " exists, and has another config; leave"
              + " TBLPROPERTIES out, and change it with ALTER TABLE " + name
              + " SET TBLPROPERTIES");
    }
    StructType found = table.schema;
    if (!asked.isEmpty() && !DataTypeUtils.sameType(asked, found)) {
      throw new IllegalArgumentException(
          "the log at " + options.get("path") + " has other columns: " + found.toDDL()
              + "; leave out the columns in CREATE TABLE " + name);
    }
    return found;
  }

  private void plan() {
    newScanBuilder(CaseInsensitiveStringMap.empty()).build().toBatch().planInputPartitions();
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Column[] columns() {
    return CatalogV2Util.structTypeToV2Columns(schema, false);
  }

  @Override
  public Set<TableCapability> capabilities() {
    return CAPABILITIES;
  }

  @Override
  public Map<String, String> properties() {
    Map<String, String> told = new HashMap<>(log.config());
    told.put(TableCatalog.PROP_PROVIDER, "clog");
    told.put(TableCatalog.PROP_EXTERNAL, "true");
    told.put(TableCatalog.PROP_LOCATION, writeOptions.get("path"));
    return told;
  }

  @Override
  public void deleteWhere(Predicate[] conditions) {
    Map<String, List<Object>> keys = keysOf(conditions);
    if (keys == null) {
      throw new UnsupportedOperationException(
          "DELETE FROM " + name + " takes " + (log.key().isEmpty() ? "key" : log.key())
              + " = or IN alone, as this table has no named columns of the key; nothing was deleted");
    }
    ClogStatement.delete(writeOptions, keys);
  }

  final Map<String, List<Object>> keysOf(Predicate[] conditions) {
    return ClogStatement.keysOf(conditions, log.key().isEmpty() ? List.of("key") : log.key());
  }

  @Override
  public boolean truncateTable() {
    ClogStatement.truncate(writeOptions);
    return true;
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    TableProvider asked = given.isEmpty() ? reader : provider();
    Table table = asked.getTable(schema, new Transform[0], readOptions);
    return ((SupportsRead) table).newScanBuilder(with(readOptions, given));
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return newWriteBuilder(new Write(info.queryId(), info.schema(), with(writeOptions, info.options())));
  }

  WriteBuilder newWriteBuilder(Write given) {
    Table table = provider().getTable(schema, new Transform[0], writeOptions);
    return ((SupportsWrite) table).newWriteBuilder(given);
  }

  CaseInsensitiveStringMap writeOptions(Map<String, String> given) {
    return with(writeOptions, given);
  }

  record Write(String queryId, StructType schema, CaseInsensitiveStringMap options)
      implements LogicalWriteInfo {}

  private static CaseInsensitiveStringMap with(Map<String, String> own, Map<String, String> given) {
    Map<String, String> all = new HashMap<>(own);
    all.putAll(given);
    return new CaseInsensitiveStringMap(all);
  }

  /** A new one: it keeps what it learned of its first options. */
  static TableProvider provider() {
    return DataSource.lookupDataSourceV2("clog", SQLConf.get()).get();
  }
}
