package clog;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.AlwaysTrue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperation.Command;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A log whose table has named key columns: DELETE, UPDATE and MERGE. Spark reads the table at the
 * version at which it was loaded, finds the rows, and gives what is left of each key; these are
 * appended together, by the Python sink, unless a key was written by others since.
 */
final class ClogRows extends ClogTable implements SupportsRowLevelOperations {
  private static final Pattern REFUSED = Pattern.compile("\\bclog\\.[\\w.]+Error: (.*)");

  ClogRows(ClogTable table) {
    super(table);
  }

  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    return () -> new Operation(info.command());
  }

  /** By key; all else by rows, for which Spark does not ask where there is no condition. */
  @Override
  public boolean canDeleteWhere(Predicate[] conditions) {
    return isAll(conditions) || keysOf(conditions) != null;
  }

  @Override
  public void deleteWhere(Predicate[] conditions) {
    if (isAll(conditions)) {
      SparkSession.active().sql(
          "MERGE INTO " + name() + " USING (SELECT 1 WHERE FALSE) ON FALSE"
              + " WHEN NOT MATCHED BY SOURCE THEN DELETE");
    } else {
      super.deleteWhere(conditions);
    }
  }

  private static boolean isAll(Predicate[] conditions) {
    return Arrays.stream(conditions).allMatch(AlwaysTrue.class::isInstance);
  }

  private static String quoted(String name) {
    return "`" + name.replace("`", "``") + "`";
  }

  private final class Operation implements SupportsDelta {
    private final Command command;

    Operation(Command command) {
      this.command = command;
    }

    @Override
    public Command command() {
      return command;
    }

    @Override
    public NamedReference[] rowId() {
      return log.key().stream().map(name -> Expressions.column(quoted(name)))
          .toArray(NamedReference[]::new);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
      Map<String, String> all = new HashMap<>(given);
      all.put("asOfVersion", Long.toString(log.version()));
      all.put("logId", log.logId());
      return ClogRows.this.newScanBuilder(new CaseInsensitiveStringMap(all));
    }

    @Override
    public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      // Made when it is executed: a DELETE by key is planned, too, and then needs no rows.
      DeltaWrite write = new DeltaWrite() {
        @Override
        public DeltaBatchWrite toBatch() {
          return new Batch(said(() -> appended(info)), schema, log.key(), command);
        }

        @Override
        public String toString() {
          return "clog " + command;
        }
      };
      return new DeltaWriteBuilder() {
        @Override
        public DeltaWrite build() {
          return write;
        }
      };
    }

    private BatchWrite appended(LogicalWriteInfo info) {
      Map<String, String> given = new HashMap<>(info.options());
      given.put("logId", log.logId());
      given.put("__read_at", Long.toString(log.version()));
      return ClogRows.this.newWriteBuilder(
          new Write(info.queryId(), told(schema), writeOptions(given))).build().toBatch();
    }
  }

  /** Does something in Python; what is refused there is told without the traceback around it. */
  private static <T> T said(Supplier<T> work) {
    try {
      return work.get();
    } catch (Exception e) { // Scala declares none that it throws
      Matcher refused = REFUSED.matcher(String.valueOf(e.getMessage()));
      if (!refused.find()) {
        throw e;
      }
      throw new UnsupportedOperationException(refused.group(1), e);
    }
  }

  /** The columns that the sink gets: those of the table, and whether the key is deleted. */
  private static StructType told(StructType table) {
    List<StructField> fields = new ArrayList<>();
    for (StructField field : table.fields()) {
      fields.add(DataTypes.createStructField(field.name(), field.dataType(), true));
    }
    fields.add(DataTypes.createStructField("__deleted", DataTypes.BooleanType, false));
    return DataTypes.createStructType(fields);
  }

  private static final class Batch implements DeltaBatchWrite {
    private final BatchWrite python;
    private final StructType table;
    private final int[] key;
    private final Command command;

    Batch(BatchWrite python, StructType table, List<String> key, Command command) {
      this.python = python;
      this.table = table;
      this.key = key.stream().mapToInt(table::fieldIndex).toArray();
      this.command = command;
    }

    @Override
    public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return new Factory(python.createBatchWriterFactory(info), table, key);
    }

    @Override
    public boolean useCommitCoordinator() {
      return python.useCommitCoordinator();
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      if (Arrays.stream(messages).anyMatch(message -> ((Told) message).changesKey)) {
        throw new UnsupportedOperationException(
            command + " cannot change the key of a row, as another row may have the new one;"
                + " DELETE the row and INSERT it with its new key; nothing was written");
      }
      said(() -> {
        python.commit(each(messages));
        return null;
      });
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      python.abort(each(messages));
    }

    private static WriterCommitMessage[] each(WriterCommitMessage[] messages) {
      return Arrays.stream(messages).filter(Objects::nonNull)
          .flatMap(message -> Arrays.stream(((Told) message).parts))
          .toArray(WriterCommitMessage[]::new);
    }
  }

  private static final class Told implements WriterCommitMessage {
    private static final long serialVersionUID = 1;
    private final WriterCommitMessage[] parts;
    private final boolean changesKey;

    Told(List<WriterCommitMessage> parts, boolean changesKey) {
      this.parts = parts.toArray(WriterCommitMessage[]::new);
      this.changesKey = changesKey;
    }
  }

  private static final class Factory implements DeltaWriterFactory {
    private static final long serialVersionUID = 1;
    private final DataWriterFactory python;
    private final StructType table;
    private final int[] key;

    Factory(DataWriterFactory python, StructType table, int[] key) {
      this.python = python;
      this.table = table;
      this.key = key;
    }

    @Override
    public DeltaWriter<InternalRow> createWriter(int partition, long task) {
      return new Writer(() -> python.createWriter(partition, task), table, key);
    }
  }

  private interface Writers {
    DataWriter<InternalRow> next();
  }

  /** Collects rows, as Spark gives one after the other, and the sink takes many. */
  private static final class Writer implements DeltaWriter<InternalRow> {
    /** After as many bytes of rows, they are written, as an object of their own. */
    private static final long BYTES_MAX = 32L << 20;

    private final Writers python;
    private final DataType[] types;
    private final int[] key;
    private final UnsafeProjection copying;
    private final List<WriterCommitMessage> told = new ArrayList<>();
    private List<InternalRow> rows = new ArrayList<>();
    private long bytes;
    private boolean changesKey;

    Writer(Writers python, StructType table, int[] key) {
      this.python = python;
      this.types = Arrays.stream(table.fields()).map(StructField::dataType).toArray(DataType[]::new);
      this.key = key;
      this.copying = UnsafeProjection.create(told(table));
    }

    @Override
    public void delete(InternalRow metadata, InternalRow id) throws java.io.IOException {
      Object[] values = new Object[types.length + 1];
      for (int i = 0; i < key.length; i++) {
        values[key[i]] = id.get(i, types[key[i]]);
      }
      add(values, true);
    }

    @Override
    public void update(InternalRow metadata, InternalRow id, InternalRow row)
        throws java.io.IOException {
      for (int i = 0; i < key.length; i++) {
        DataType type = types[key[i]];
        // Told to the driver: what is thrown here would be wrapped, and tried again.
        changesKey |= !Objects.deepEquals(id.get(i, type), row.get(key[i], type));
      }
      insert(row);
    }

    @Override
    public void insert(InternalRow row) throws java.io.IOException {
      Object[] values = new Object[types.length + 1];
      for (int i = 0; i < types.length; i++) {
        values[i] = row.isNullAt(i) ? null : row.get(i, types[i]);
      }
      add(values, false);
    }

    @Override
    public void write(InternalRow row) throws java.io.IOException {
      insert(row);
    }

    private void add(Object[] values, boolean isDeleted) throws java.io.IOException {
      values[types.length] = isDeleted;
      UnsafeRow row = copying.apply(new GenericInternalRow(values)).copy();
      rows.add(row);
      bytes += row.getSizeInBytes();
      if (bytes > BYTES_MAX) {
        flush();
      }
    }

    private void flush() throws java.io.IOException {
      DataWriter<InternalRow> writer = python.next();
      writer.writeAll(rows.iterator());
      told.add(writer.commit());
      writer.close();
      rows = new ArrayList<>();
      bytes = 0;
    }

    @Override
    public WriterCommitMessage commit() throws java.io.IOException {
      if (!rows.isEmpty() || told.isEmpty()) { // Some of a task without rows: it names the log.
        flush();
      }
      return new Told(told, changesKey);
    }

    @Override
    public void abort() {
      rows = new ArrayList<>();
    }

    @Override
    public void close() {
      rows = new ArrayList<>();
    }
  }
}
