// Pictures and sounds below what was said: a thumbnail, with a dialog that shows it whole, or a player.

const TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"]; // as `frame_codec.PICTURES`
const LARGEST = 10_000_000; // bytes

const own = new Map(); // token of a picture that was sent from here -> its address in this tab

/** Remember the picture *data* that was handed over as *token*, until the history names its address. */
export function keepPicture(token, data) {
  if (TYPES.includes(data.type) && data.size <= LARGEST) own.set(token, URL.createObjectURL(data));
}

/** Let go of the pictures that were sent from here. */
export function forgetPictures() {
  for (const address of own.values()) URL.revokeObjectURL(address);
  own.clear();
}

/** Return a player of *file*; null if it is no sound. What it says is the text above it. */
export function player(file) {
  if (!file.is_sound || !file.href) return null;
  const audio = document.createElement("audio");
  audio.controls = true;
  audio.preload = "none";
  audio.src = file.href;
  audio.setAttribute("aria-label", file.name);
  return audio;
}

export class Pictures {
  constructor(words) {
    this.words = words;
    this.viewer = document.getElementById("viewer");
    this.viewer.addEventListener("click", ({ target }) => {
      if (target.closest("button") || target === this.viewer) this.viewer.close();
    });
    this.viewer.addEventListener("close", () => this.viewer.querySelector("img").removeAttribute("src"));
  }

  /** Return a thumbnail of *file* that opens it; null if it is no picture. What cannot be drawn is its link alone. */
  thumbnail(file) {
    const address = own.get(file.token) ?? (file.is_picture ? file.href : "");
    if (!address) return null;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "thumbnail";
    button.setAttribute("aria-label", this.words.picture_open.replace("{name}", file.name));
    const picture = document.createElement("img");
    picture.alt = file.alt ?? "";
    picture.loading = "lazy";
    picture.decoding = "async";
    picture.src = address;
    picture.addEventListener("error", () => button.remove());
    button.append(picture);
    button.addEventListener("click", () => this.open(file, address));
    return button;
  }

  open(file, address) {
    const picture = this.viewer.querySelector("img");
    picture.src = address;
    picture.alt = file.alt ?? file.name;
    const link = this.viewer.querySelector("a");
    link.textContent = file.name;
    link.href = address;
    link.download = file.name;
    this.viewer.showModal();
  }
}
