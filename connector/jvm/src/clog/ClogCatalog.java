package clog;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;

import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.util.QuotingUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogManager;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.DelegatingCatalogExtension;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.TableWritePrivilege;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Logs by name. What a name stands for is kept by the session's own catalog (its metastore), other
 * tables are that one's; a table of a log is read and written by the Python data source, with the
 * options that the catalog keeps, which Spark's own forgets.
 *
 * <p>{@code spark.sql.catalog.clog=clog.ClogCatalog}
 */
public final class ClogCatalog extends DelegatingCatalogExtension {
  private static final String PROVIDER = "clog";

  /** Options that make a log; the others are of each read and write. */
  private static final Pattern OF_CREATION =
      Pattern.compile("(option\\.)?(keycolumns|partitions|config\\..*)", Pattern.CASE_INSENSITIVE);

  private String name;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    if (!isSessions()) {
      setDelegateCatalog(session().sessionState().catalogManager().v2SessionCatalog());
    }
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    Identifier[] all = super.listTables(namespace);
    return isSessions() ? all : Arrays.stream(all).filter(this::tableExists).toArray(Identifier[]::new);
  }

  @Override
  public boolean tableExists(Identifier ident) {
    try {
      return find(ident) != null || isSessions() && super.tableExists(ident);
    } catch (NoSuchTableException e) {
      return false;
    }
  }

  @Override
  public Table loadTable(Identifier ident) throws NoSuchTableException {
    return load(ident, Map.of());
  }

  @Override
  public Table loadTable(Identifier ident, Set<TableWritePrivilege> privileges)
      throws NoSuchTableException {
    return loadTable(ident);
  }

  @Override
  public Table loadTable(Identifier ident, String version) throws NoSuchTableException {
    return load(ident, Map.of("asOfVersion", version));
  }

  @Override
  public Table loadTable(Identifier ident, long timestampUs) throws NoSuchTableException {
    return load(ident, Map.of("asOfTimestamp", Long.toString(Math.floorDiv(timestampUs, 1000L))));
  }

  @Override
  public Table createTable(Identifier ident, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return createTable(ident, info.columns(), info.partitions(), info.properties());
  }

  @Override
  public Table createTable(
      Identifier ident, Column[] columns, Transform[] partitions, Map<String, String> properties)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    String provider = properties.getOrDefault(TableCatalog.PROP_PROVIDER, PROVIDER);
    if (!PROVIDER.equalsIgnoreCase(provider)) {
      if (isSessions()) {
        return super.createTable(ident, columns, partitions, properties);
      }
      throw new UnsupportedOperationException(
          "catalog " + name + " holds tables of format clog alone; create " + ident.name()
              + ", USING " + provider + ", in " + CatalogManager.SESSION_CATALOG_NAME());
    }
    String location = properties.get(TableCatalog.PROP_LOCATION);
    if (location == null) {
      throw new IllegalArgumentException(
          "a table of format clog needs the URL of its log: CREATE TABLE " + ident.name()
              + " USING clog LOCATION 's3://bucket/log'");
    }
    if (partitions.length != 0) {
      throw new IllegalArgumentException(
          "a log is partitioned by key; leave PARTITIONED BY out of CREATE TABLE " + ident.name());
    }
    Map<String, String> given = new HashMap<>(properties);
    given.put(TableCatalog.PROP_PROVIDER, PROVIDER);
    Map<String, String> configs = configsOf(given);
    StructType asked = CatalogV2Util.v2ColumnsToStructType(columns);
    StructType found = ClogTable.check(fullName(ident), optionsOf(location, given), asked, configs);
    given.keySet().removeAll(configs.keySet());
    given = withoutCreation(given);
    // With columns, as the Python source refuses a table that Spark's own catalog would forget.
    Column[] kept = CatalogV2Util.structTypeToV2Columns(found, false);
    return super.createTable(ident, kept, partitions, given);
  }

  @Override
  public Table alterTable(Identifier ident, TableChange... changes) throws NoSuchTableException {
    CatalogTable known = find(ident);
    if (known == null) {
      return super.alterTable(ident, changes);
    }
    ClogStatement.alter(optionsOf(known), changes);
    ClogTable now = (ClogTable) loadTable(ident);
    // For clients that ask the metastore itself, as JDBC's do.
    session().sessionState().catalog().alterTableSchema(known.identifier(), now.schema);
    return now;
  }

  @Override
  public Changelog loadChangelog(
      Identifier ident, ChangelogContext context, CaseInsensitiveStringMap given)
      throws NoSuchTableException {
    CatalogTable known = find(ident);
    if (known == null) {
      if (isSessions()) {
        return super.loadChangelog(ident, context, given);
      }
      throw new NoSuchTableException(ident);
    }
    return new ClogChanges(fullName(ident), optionsOf(known), context, given);
  }

  private Table load(Identifier ident, Map<String, String> at) throws NoSuchTableException {
    CatalogTable known = find(ident);
    if (known == null) {
      if (isSessions() && at.isEmpty()) {
        return super.loadTable(ident);
      }
      throw new NoSuchTableException(ident);
    }
    return ClogTable.of(fullName(ident), optionsOf(known), at);
  }

  /** What the session's catalog holds of a log's table; null: it has none of that name. */
  private static CatalogTable find(Identifier ident) throws NoSuchTableException {
    if (ident.namespace().length != 1) {
      return null;
    }
    var catalog = session().sessionState().catalog();
    var id = TableIdentifier.apply(ident.name(), scala.Option.apply(ident.namespace()[0]));
    try {
      CatalogTable table = catalog.tableExists(id) ? catalog.getTableMetadata(id) : null;
      return table != null && table.provider().contains(PROVIDER) ? table : null;
    } catch (NoSuchNamespaceException e) {
      throw new NoSuchTableException(ident);
    }
  }

  /** What TBLPROPERTIES names; Spark puts it among the options, which it gives twice. */
  private static Map<String, String> configsOf(Map<String, String> properties) {
    Map<String, String> configs = new HashMap<>(properties);
    configs.keySet().removeIf(name -> CatalogV2Util.TABLE_RESERVED_PROPERTIES().contains(name)
        || name.startsWith(TableCatalog.OPTION_PREFIX)
        || properties.containsKey(TableCatalog.OPTION_PREFIX + name));
    return configs;
  }

  static Map<String, String> withoutCreation(Map<String, String> options) {
    Map<String, String> kept = new HashMap<>(options);
    kept.keySet().removeIf(key -> OF_CREATION.matcher(key).matches());
    return kept;
  }

  /** Whether it stands in the place of the session's catalog, and not beside it. */
  private boolean isSessions() {
    return name.equals(CatalogManager.SESSION_CATALOG_NAME());
  }

  private static Map<String, String> optionsOf(CatalogTable known) {
    Map<String, String> properties = new HashMap<>();
    known.storage().properties()
        .foreach(p -> properties.put(TableCatalog.OPTION_PREFIX + p._1(), p._2()));
    return optionsOf(known.storage().locationUri().get().toString(), properties);
  }

  private static Map<String, String> optionsOf(String location, Map<String, String> properties) {
    Map<String, String> options = new HashMap<>();
    properties.forEach((key, value) -> {
      if (key.startsWith(TableCatalog.OPTION_PREFIX)) {
        options.put(key.substring(TableCatalog.OPTION_PREFIX.length()), value);
      }
    });
    options.put("path", location);
    return options;
  }

  private String fullName(Identifier ident) {
    return QuotingUtils.quoteIfNeeded(name) + "." + ident;
  }

  private static SparkSession session() {
    return SparkSession.active();
  }
}
