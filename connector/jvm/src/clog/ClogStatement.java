package clog;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Statements that change a log and have no rows, as {@code clog.connector.statements} reads them.
 * What is right for a log is decided there, and told in one sentence.
 */
final class ClogStatement {
  static final ObjectMapper JSON = new ObjectMapper();

  private ClogStatement() {}

  static void alter(Map<String, String> options, TableChange... changes) {
    carryOut(options, "alter", Arrays.stream(changes).map(ClogStatement::toldOf).toList());
  }

  static void delete(Map<String, String> options, Map<String, List<Object>> keys) {
    carryOut(options, "delete", keys);
  }

  static void truncate(Map<String, String> options) {
    carryOut(options, "truncate", null);
  }

  /** The values of each key column that conditions name; null if they say anything else. */
  static Map<String, List<Object>> keysOf(Predicate[] conditions, List<String> keyColumns) {
    Map<String, List<Object>> found = new LinkedHashMap<>();
    keyColumns.forEach(name -> found.put(name, null));
    for (Predicate condition : conditions) {
      Expression[] parts = condition.children();
      boolean isOne = condition.name().equals("=") && parts.length == 2;
      if (!isOne && !condition.name().equals("IN")) {
        return null;
      }
      if (!(parts[0] instanceof NamedReference column) || column.fieldNames().length != 1) {
        return null;
      }
      String name = column.fieldNames()[0];
      if (!found.containsKey(name) || found.get(name) != null) {
        return null;
      }
      List<Object> values = new ArrayList<>();
      for (Expression part : Arrays.asList(parts).subList(1, parts.length)) {
        if (!(part instanceof Literal<?> literal)) {
          return null;
        }
        if (literal.value() == null) {
          continue; // Equal to none.
        }
        Object value = exactly(literal);
        if (value == null) {
          return null;
        }
        values.add(value);
      }
      found.put(name, values);
    }
    return found.isEmpty() || found.containsValue(null) ? null : found;
  }

  /** A value that JSON has exactly; null: it does not. */
  private static Object exactly(Literal<?> literal) {
    return switch (literal.dataType().typeName()) {
      case "string" -> literal.value().toString();
      case "binary" -> Base64.getEncoder().encodeToString((byte[]) literal.value());
      case "byte", "short", "integer", "long", "boolean" -> literal.value();
      default -> null;
    };
  }

  private static Map<String, Object> toldOf(TableChange change) {
    Map<String, Object> told = new HashMap<>();
    if (change instanceof TableChange.SetProperty set) {
      told.put("set", set.property());
      told.put("value", set.value());
    } else if (change instanceof TableChange.RemoveProperty unset) {
      told.put("set", unset.property());
    } else if (change instanceof TableChange.ColumnChange of) {
      told.put("field", of.fieldNames());
      if (change instanceof TableChange.AddColumn add) {
        told.put("do", "add");
        told.put("type", add.dataType().json());
        told.put("nullable", add.isNullable());
        told.put("position", add.position() == null ? null : add.position().toString());
        told.put("comment", add.comment());
        told.put("default", add.defaultValue() == null ? null : add.defaultValue().getSql());
      } else if (change instanceof TableChange.UpdateColumnType widen) {
        told.put("do", "widen");
        told.put("type", widen.newDataType().json());
      } else if (change instanceof TableChange.UpdateColumnNullability relax) {
        told.put("do", "relax");
        told.put("nullable", relax.nullable());
      } else if (change instanceof TableChange.RenameColumn rename) {
        told.put("do", "rename");
        told.put("name", rename.newName());
      } else if (change instanceof TableChange.DeleteColumn) {
        told.put("do", "drop");
      } else if (change instanceof TableChange.UpdateColumnPosition move) {
        told.put("do", "move");
        told.put("position", move.position().toString());
      } else if (change instanceof TableChange.UpdateColumnComment say) {
        told.put("do", "comment");
        told.put("comment", say.newComment());
      } else if (change instanceof TableChange.UpdateColumnDefaultValue) {
        told.put("do", "default");
        told.put("default", change.toString());
      } else {
        told.put("do", change.getClass().getSimpleName());
      }
    } else {
      told.put("field", new String[0]);
      told.put("do", change.getClass().getSimpleName());
    }
    return told;
  }

  private static void carryOut(Map<String, String> options, String what, Object given) {
    Map<String, String> all = new HashMap<>(options);
    try {
      all.put("__statement", JSON.writeValueAsString(Collections.singletonMap(what, given)));
    } catch (JsonProcessingException e) {
      throw new IllegalStateException(e);
    }
    StructField answer =
        ClogTable.provider().inferSchema(new CaseInsensitiveStringMap(all)).fields()[0];
    if (answer.name().equals("refused")) {
      throw new UnsupportedOperationException(answer.getComment().get());
    }
    if (!answer.name().equals("done")) { // An earlier release has told its columns.
      throw new UnsupportedOperationException(
          "the pyspark-clog that is installed is older than this catalog, and nothing was changed;"
              + " upgrade it to 0.3.0 or newer");
    }
  }
}
