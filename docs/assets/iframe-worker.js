// Search runs in a worker, and a page that was opened from the file system may not start one.
// There, run the worker's script in a hidden frame instead, which speaks the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html><title>search</title><body>";
      const address = new URL(url, document.baseURI).href;
      frame.onload = () => this.start(frame.contentWindow, address);
      document.body.appendChild(frame);
    }

    start(inside, url) {
      const load = (address) => new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        script.src = new URL(address, url).href;
        script.onload = done;
        script.onerror = failed;
        inside.document.body.appendChild(script);
      });
      inside.postMessage = (data) => setTimeout(() => this.receive(data));
      inside.importScripts = (...each) => each.reduce((before, one) => before.then(() => load(one)), Promise.resolve());
      load(url).then(() => {
        this.inside = inside;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }

    receive(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      if (!this.inside) this.waiting.push(data);
      else this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }

    terminate() {}
  };
}
