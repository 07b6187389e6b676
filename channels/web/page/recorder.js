// Recording what a person says, bounded in time and bytes; when it stops, it is a file for the next message.

const PIECE = 250; // milliseconds of sound between two looks at the limits
const BITS_PER_SECOND = 32_000; // enough for speech
const ENDINGS = { "audio/mp4": "m4a", "audio/ogg": "ogg" }; // of the file's name; elsewhere webm

export class Recorder {
  constructor(words, on) {
    this.words = words;
    this.on = on; // recorded(file), trouble(line), ended()
    this.button = document.getElementById("record");
    this.bar = document.getElementById("recording");
    this.clock = this.bar.querySelector("[role=timer]");
    this.stopButton = document.getElementById("record-stop");
    this.button.addEventListener("click", () => this.start());
    this.stopButton.addEventListener("click", () => this.end(true));
    document.getElementById("record-cancel").addEventListener("click", () => this.end(false));
    this.bar.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.end(false);
    });
  }

  /** Offer recording where the server can listen and the browser can record. */
  allow(canListen) {
    // A page without HTTPS, but on this machine, has no mediaDevices.
    this.button.hidden = !(canListen && globalThis.MediaRecorder && navigator.mediaDevices);
    if (this.button.hidden) this.end(false);
  }

  async start() {
    this.button.disabled = true; // a second click would open the microphone twice
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
      this.record(stream);
    } catch (error) {
      this.button.disabled = false;
      this.on.trouble(error.name === "NotAllowedError" ? this.words.record_denied : this.words.record_failed);
    }
  }

  record(stream) {
    const recorder = new MediaRecorder(stream, { audioBitsPerSecond: BITS_PER_SECOND });
    const pieces = [];
    let size = 0;
    recorder.addEventListener("dataavailable", ({ data }) => {
      pieces.push(data);
      size += data.size;
      if (size > Number(this.button.dataset.largest)) this.full();
    });
    recorder.addEventListener("stop", () => {
      for (const track of stream.getTracks()) track.stop(); // or the browser shows an open microphone
      if (!recorder.isWanted) return;
      const type = recorder.mimeType.split(";")[0] || "audio/webm";
      this.on.recorded(new File(pieces, `${this.words.recording}.${ENDINGS[type] ?? "webm"}`, { type }));
    });
    recorder.addEventListener("error", () => this.end(true)); // such as a microphone that was unplugged
    recorder.start(PIECE);
    this.recorder = recorder;
    this.begun = performance.now();
    this.timer = setInterval(() => this.tick(), PIECE);
    this.show(true);
    this.tick();
    this.stopButton.focus();
  }

  tick() {
    const seconds = Math.floor((performance.now() - this.begun) / 1000);
    this.clock.textContent = [Math.floor(seconds / 60), String(seconds % 60).padStart(2, "0")].join(":");
    if (seconds >= Number(this.button.dataset.longest)) this.full();
  }

  /** Stop at a limit, and say so; what was recorded is kept. */
  full() {
    if (!this.recorder) return;
    this.on.trouble(this.words.record_full);
    this.end(true);
  }

  /** Stop recording; the file is made if it *isWanted*. */
  end(isWanted) {
    const { recorder } = this;
    if (!recorder) return;
    this.recorder = null;
    clearInterval(this.timer);
    recorder.isWanted = isWanted;
    if (recorder.state !== "inactive") recorder.stop();
    this.show(false);
    this.on.ended();
  }

  show(isOn) {
    this.bar.hidden = !isOn;
    this.button.disabled = isOn;
  }
}
