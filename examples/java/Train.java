// Trains five steps from a bundle.
//
//   remat rewrite step.onnx --strategy full --bundle B --for java
//   mvn dependency:copy-dependencies -DoutputDirectory=lib
//   java -cp 'lib/*' Train.java B

import ai.onnxruntime.OnnxJavaType;
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtSession;
import com.google.gson.Gson;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

class Train {
  record Manifest(String graph, String loss, String next_values, Session session, List<Input> inputs, List<Output> outputs) {}

  record Session(boolean memory_pattern, boolean arena, String graph_optimization_level, int intra_op_num_threads) {}

  record Input(String name, String type, long[] shape, String fed, long below, String next, Value initial, float value) {}

  record Value(String file, long offset, long bytes) {}

  record Output(String name) {}

  static final Map<String, OnnxJavaType> TYPES = Map.of("float32", OnnxJavaType.FLOAT, "float64", OnnxJavaType.DOUBLE,
      "int64", OnnxJavaType.INT64, "int32", OnnxJavaType.INT32, "int8", OnnxJavaType.INT8, "uint8", OnnxJavaType.UINT8, "bool", OnnxJavaType.BOOL);

  /** Stands for data of yours. */
  static void batch(ByteBuffer data, Input in) {
    for (int i = 0; in.type().equals("int64") && i < data.capacity() / 8; i++) {
      data.putLong(i * 8, (i * 7L + 3) % Math.max(in.below(), 1));
    }
    for (int i = 0; in.type().equals("float32") && i < data.capacity() / 4; i++) {
      data.putFloat(i * 4, ((i * 37L) % 19 - 9) / 64f);
    }
  }

  static ByteBuffer first(Path folder, Input in) throws IOException {
    int size = TYPES.get(in.type()).size;
    long bytes = Arrays.stream(in.shape()).reduce(size, Math::multiplyExact);
    ByteBuffer data = ByteBuffer.allocateDirect(Math.toIntExact(bytes)).order(ByteOrder.nativeOrder());
    if (in.fed().equals("batch")) {
      batch(data, in);
    } else if (in.initial() != null) {
      try (FileChannel file = FileChannel.open(folder.resolve(in.initial().file()))) {
        while (data.hasRemaining() && file.read(data, in.initial().offset() + data.position()) > 0) {
        }
      }
      if (data.hasRemaining()) {
        throw new IOException(in.initial().file() + ": too short");
      }
      data.rewind();
    } else if (in.fed().equals("parameter")) {
      throw new IOException(in.name() + ": the bundle has no first value of it");
    }
    return data;
  }

  static OrtSession.SessionOptions options(Session asked) throws Exception {
    OrtSession.SessionOptions o = new OrtSession.SessionOptions();
    o.setMemoryPatternOptimization(asked.memory_pattern()); // off: a pattern holds more from the second step on
    o.setCPUArenaAllocator(asked.arena());
    o.setIntraOpNumThreads(asked.intra_op_num_threads());
    o.setOptimizationLevel(switch (asked.graph_optimization_level()) {
      case "disabled" -> OrtSession.SessionOptions.OptLevel.NO_OPT;
      case "basic" -> OrtSession.SessionOptions.OptLevel.BASIC_OPT;
      default -> OrtSession.SessionOptions.OptLevel.ALL_OPT;
    });
    return o;
  }

  static void fail(String why) {
    System.err.println(why);
    System.exit(1);
  }

  public static void main(String[] args) throws Exception {
    if (args.length != 1) {
      fail("usage: java -cp 'lib/*' Train.java BUNDLE");
    }
    Path folder = Path.of(args[0]);
    Manifest manifest = new Gson().fromJson(Files.readString(folder.resolve("manifest.json")), Manifest.class);
    if (manifest.inputs().stream().allMatch(i -> i.next() == null)) {
      fail("the bundle's graph updates nothing: derive it with remat grad --optimizer sgd, or another");
    }
    OrtEnvironment env = OrtEnvironment.getEnvironment();
    OrtSession session = env.createSession(folder.resolve(manifest.graph()).toString(), options(manifest.session()));

    Map<String, ByteBuffer> memory = new HashMap<>();
    Map<String, OnnxTensor> feeds = new HashMap<>();
    for (Input in : manifest.inputs()) {
      memory.put(in.name(), first(folder, in));
      feeds.put(in.name(), OnnxTensor.createTensor(env, memory.get(in.name()), in.shape(), TYPES.get(in.type())));
    }
    boolean bound = manifest.next_values().equals("bound");
    Set<String> returned = new HashSet<>();
    manifest.outputs().forEach(o -> returned.add(o.name()));
    Map<String, OnnxTensor> pinned = new HashMap<>();
    for (Input in : manifest.inputs()) {
      if (bound && in.next() != null) {
        pinned.put(in.next(), feeds.get(in.name())); // over its input
        returned.remove(in.next());
      }
    }

    float scale = manifest.inputs().stream().filter(i -> i.fed().equals("loss_scale")).map(Input::value).findFirst().orElse(0f);
    long step = 1;
    for (int run = 1; run <= 5; run++) {
      for (Input in : manifest.inputs()) {
        switch (in.fed()) {
          case "lr" -> memory.get(in.name()).putFloat(0, 1e-3f);
          case "step" -> memory.get(in.name()).putLong(0, step);
          case "loss_scale" -> memory.get(in.name()).putFloat(0, scale);
          default -> { }
        }
      }
      try (OrtSession.Result out = session.run(feeds, returned, pinned)) {
        for (Input in : manifest.inputs()) {
          if (!bound && in.next() != null) {
            memory.get(in.name()).rewind().put(((OnnxTensor) out.get(in.next()).get()).getByteBuffer()).rewind();
          }
        }
        System.out.printf(Locale.ROOT, "%d %.9g%n", run, ((OnnxTensor) out.get(manifest.loss()).get()).getFloatBuffer().get(0));
        if (returned.contains("found_inf") && ((OnnxTensor) out.get("found_inf").get()).getByteBuffer().get(0) != 0) {
          scale /= 2; // a gradient overflowed, and nothing was updated
        } else {
          step++;
        }
      }
    }
  }
}
