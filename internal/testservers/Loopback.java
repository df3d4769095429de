import com.amazonaws.services.dynamodbv2.local.main.ServerRunner;
import com.amazonaws.services.dynamodbv2.local.server.DynamoDBProxyServer;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/**
 * DynamoDB Local on the loopback interface. Its own main class listens on all interfaces, and
 * has no option for another address. It checks no signature, so everybody who reaches it may
 * read and write all of it.
 */
class Loopback {
	public static void main(String[] options) throws Exception {
		var dynamo = ServerRunner.createServerFromCommandLineArgs(options);
		var jetty = DynamoDBProxyServer.class.getDeclaredField("server");
		jetty.setAccessible(true);
		for (var connector : ((Server) jetty.get(dynamo)).getConnectors())
			((ServerConnector) connector).setHost("127.0.0.1");
		dynamo.start();
		dynamo.join();
	}
}
