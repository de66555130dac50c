// Search runs in a worker, and a page that was opened from the file system may not start one.
// There, run the worker's script in a hidden frame instead, which speaks the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.url = url;
      this.onmessage = null;
      this.waiting = [];
      this.ready = false;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      const receive = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      const page = frame.contentDocument;
      page.open();
      page.write("<!doctype html><base href='" + new URL(".", url).href + "'>");
      page.close();
      this.inside.postMessage = (data) => setTimeout(() => receive(data));
      this.inside.importScripts = (...urls) =>
        urls.reduce((before, each) => before.then(() => new Promise((done, failed) => {
          const script = page.createElement("script");
          script.src = new URL(each, url).href;
          script.onload = done;
          script.onerror = failed;
          page.body.appendChild(script);
        })), Promise.resolve());
      this.inside.importScripts(url).then(() => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }

    postMessage(data) {
      if (!this.ready) {
        this.waiting.push(data);
        return;
      }
      const event = new this.inside.MessageEvent("message", { data });
      this.inside.dispatchEvent(event);
    }

    terminate() {}
  };
}
