package clog;

import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.DataSource;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A log as a table: reads are its table view, writes append records. */
final class ClogTable implements SupportsRead, SupportsWrite {
  private static final Set<TableCapability> CAPABILITIES =
      EnumSet.of(TableCapability.BATCH_READ, TableCapability.BATCH_WRITE);

  private final String name;
  private final StructType schema;
  private final Map<String, String> readOptions;
  private final Map<String, String> writeOptions;
  private final TableProvider reader;

  ClogTable(String name, Map<String, String> options, Map<String, String> at) {
    this.name = name;
    this.writeOptions = Map.copyOf(options);
    Map<String, String> read = new HashMap<>(options);
    read.put("view", "table");
    read.putAll(at);
    this.readOptions = Map.copyOf(read);
    this.reader = provider();
    this.schema = reader.inferSchema(new CaseInsensitiveStringMap(readOptions));
  }

  /** The log's columns; raises if there is none, or one of others; makes it where they are given. */
  static StructType check(String name, Map<String, String> options, StructType asked) {
    Map<String, String> kept = ClogCatalog.withoutCreation(options);
    try {
      new ClogTable(name, kept, Map.of()).plan();
    } catch (Exception e) { // Scala declares none that it throws
      if (asked.isEmpty() || !String.valueOf(e.getMessage()).contains("no log at ")) {
        throw e;
      }
      SparkSession.active().createDataFrame(List.<Row>of(), asked)
          .write().format("clog").options(options).mode(SaveMode.Append).save();
    }
    StructType found = new ClogTable(name, kept, Map.of()).schema;
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
    return Map.of(
        TableCatalog.PROP_PROVIDER, "clog",
        TableCatalog.PROP_EXTERNAL, "true",
        TableCatalog.PROP_LOCATION, writeOptions.get("path"));
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    TableProvider asked = given.isEmpty() ? reader : provider();
    Table table = asked.getTable(schema, new Transform[0], readOptions);
    return ((SupportsRead) table).newScanBuilder(with(readOptions, given));
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    Table table = provider().getTable(schema, new Transform[0], writeOptions);
    return ((SupportsWrite) table).newWriteBuilder(new Write(info, with(writeOptions, info.options())));
  }

  private record Write(LogicalWriteInfo info, CaseInsensitiveStringMap options)
      implements LogicalWriteInfo {
    @Override
    public String queryId() {
      return info.queryId();
    }

    @Override
    public StructType schema() {
      return info.schema();
    }
  }

  private static CaseInsensitiveStringMap with(Map<String, String> own, Map<String, String> given) {
    Map<String, String> all = new HashMap<>(own);
    all.putAll(given);
    return new CaseInsensitiveStringMap(all);
  }

  /** A new one: it keeps what it learned of its first options. */
  private static TableProvider provider() {
    return DataSource.lookupDataSourceV2("clog", SQLConf.get()).get();
  }
}
